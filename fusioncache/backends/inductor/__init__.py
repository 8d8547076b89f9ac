"""TorchInductor's code as bytes that another process can load.

For a graph on the CPU, TorchInductor makes one shared library per kernel and a Python function, the wrapper, that
allocates and calls them. The artifacts contain the libraries unchanged, and the wrapper as text. Loading compiles and
unpickles nothing; it needs a few functions of torch's C extension and no module of TorchInductor. The kernels' C++ is
stored for people to read; loading ignores it.

The text is in a small language: allocations, views, calls of kernels and of torch's matrix products. It is checked
when it is stored and when it is loaded, so a wrapper that does anything else is rejected both times. That is no
protection against an attacker: kernels are machine code, which can do anything. Load only code that is trusted as much
as the program itself.
"""
