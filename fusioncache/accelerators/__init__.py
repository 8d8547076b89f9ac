"""Accelerators: parts of fusioncache that can be switched off alone, each in its own folder."""
