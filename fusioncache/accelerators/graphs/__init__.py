"""CUDA graphs: forward and backward of a program, captured once for each kind of call and launched as one.

What is static, whose memory is leased to a backward that is still to come, and how results leave a graph is decided
here without CUDA; ``cuda.py`` is the only file that captures.
"""
