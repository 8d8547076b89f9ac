"""Thunder, fusioncache, torch.compile and eager torch on the same work."""
