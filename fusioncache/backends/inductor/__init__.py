"""TorchInductor's code as bytes that another process can load.

What TorchInductor makes of a graph on the CPU is one shared library a kernel and a Python function, the wrapper, that
allocates and calls them. The artifacts have the libraries as they are, and the wrapper as text. Loading compiles and
unpickles nothing; it needs a few functions of torch's C extension and no module of TorchInductor. The kernels' C++ is
there for people to read; loading does not look at it.

The text is one of a small language: allocations, views, calls of kernels and of torch's matrix products. It is checked
when it is persisted and again when it is loaded, so that a wrapper that does anything else is neither. That is no
protection against an attacker: kernels are machine code, and one who can write them can do anything. Load only what is
trusted as much as the program itself.
"""
