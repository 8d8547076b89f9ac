"""What ``stats()`` says was saved, against the real difference to Thunder alone: see ``__main__``."""
