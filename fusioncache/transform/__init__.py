"""Thunder: regions out of a trace, calls of templates back into it, and the ways to register all this."""

from fusioncache.thunder_adapter import load_thunder

# Before any module of this folder: once Thunder is imported, the executor is registered with it, from here.
load_thunder()
