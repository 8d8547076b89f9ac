"""Whether models compute the same bits with fusioncache, and how many templates they have."""
