"""CUDA graphs: forward and backward of a program, captured once for each kind of call and launched as one.

Static arguments, leases of memory for pending backward passes, and the return of results are managed without CUDA;
``cuda.py`` is the only file that captures.
"""
