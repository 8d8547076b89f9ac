"""The names of Thunder that lean steps, quick prologues and grouped products are written with."""

from __future__ import annotations

from thunder import _cache_info_ctx
from thunder.core import jit_ext, transforms, utils
from thunder.core.compile_data import _compile_data
from thunder.core.interpreter import interpreter_needs_wrap
from thunder.core.jit_ext import ensure_recursive_proxies, record_source_loc_in_symbol_header
from thunder.core.langctxs import _langctx, resolve_language
from thunder.executors import sdpaex
from thunder.executors.pythonex import _clear_mutable_collection_prim_impl
from thunder.executors.sdpaex import _attention_mask_memory_efficient_helper

__all__ = [
    "_attention_mask_memory_efficient_helper",
    "_cache_info_ctx",
    "_clear_mutable_collection_prim_impl",
    "_compile_data",
    "_langctx",
    "ensure_recursive_proxies",
    "interpreter_needs_wrap",
    "jit_ext",
    "record_source_loc_in_symbol_header",
    "resolve_language",
    "sdpaex",
    "transforms",
    "utils",
]
