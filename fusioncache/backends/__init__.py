"""The compilers: nvFuser, TorchInductor and eager torch. No other folder depends on a particular compiler."""
