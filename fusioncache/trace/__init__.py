"""Thunder: regions out of a trace, calls of templates back into it, and the ways to register all this."""

# Before any module of this folder: once Thunder is imported, the executor is registered with it, from here.
import thunder as _thunder  # noqa: F401
