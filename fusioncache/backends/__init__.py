"""Compilers: nvFuser, TorchInductor, and none at all. The only folder that knows one."""
