"""The names of Thunder that fusioncache's executor is registered with, also in a Thunder that lacks all others."""

from __future__ import annotations

from thunder.extend import OperatorExecutor, register_executor

__all__ = [
    "OperatorExecutor",
    "register_executor",
]
