"""The names of Thunder that only whole processes have: those of our executor, the plugin and lists of entries.

They are not in ``api.py``, as a process that only compiles for nvFuser imports that, and has little else of Thunder.
"""

from __future__ import annotations

from thunder import CacheEntry
from thunder.core.recipe import Plugin, PluginPolicy
from thunder.executors import sdpaex
from thunder.executors.data_dependent_partition import Node, consecutive_fusion, fuse_bound_symbols
from thunder.executors.torch_compile import TorchCompileExecutor

__all__ = [
    "CacheEntry",
    "Node",
    "Plugin",
    "PluginPolicy",
    "TorchCompileExecutor",
    "consecutive_fusion",
    "fuse_bound_symbols",
    "sdpaex",
]
