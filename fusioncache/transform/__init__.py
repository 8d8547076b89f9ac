"""Thunder transform: reads regions of a trace, replaces them by calls of templates, and registers all this."""

from fusioncache.thunder_adapter import load_thunder

# Before any module of this folder: once Thunder is imported, the executor is registered from here.
load_thunder()
