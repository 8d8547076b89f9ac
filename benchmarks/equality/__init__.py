"""Whether models compute the same bits with fusioncache: in training, at lengths, in later processes, in traces."""
