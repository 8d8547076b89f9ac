"""Checks that models compute the same with fusioncache: in training, at lengths, in later processes, in traces."""
