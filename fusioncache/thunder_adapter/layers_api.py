"""The names of Thunder that repeated layers are recorded and stamped with."""

from __future__ import annotations

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, get_interpreterruntimectx
from thunder.core.jit_ext import get_jit_ctx
from thunder.core.options import SHARP_EDGES_OPTIONS
from thunder.core.symbol import _bsym_header

__all__ = [
    "INTERPRETER_SIGNALS",
    "SHARP_EDGES_OPTIONS",
    "WrappedValue",
    "_bsym_header",
    "get_interpreterruntimectx",
    "get_jit_ctx",
    "interpreter",
    "jit_ext",
]
