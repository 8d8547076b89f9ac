"""What a second process waits for, part by part, beside Thunder and torch.compile: see ``__main__``."""
