"""The names of Thunder that symbolic sizes are traced and filled in with."""

from __future__ import annotations

from thunder import clang
from thunder.common import transform_for_execution
from thunder.core import interpreter, jit_ext, pytree, transform_common
from thunder.core.compile_data import _compile_data
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    do_raise,
    get_interpreterruntimectx,
    interpreter_needs_wrap,
    is_opaque,
    wrap,
)
from thunder.core.jit_ext import _apply_trace_proxy_rename, get_jit_ctx, update_tags
from thunder.core.proxies import is_proxy_name_available
from thunder.core.symbol import BoundSymbolRHS
from thunder.core.trace import TraceResults
from thunder.core.utils import FrozenDict, dtype_to_numbertype
from thunder.distributed.transforms.ddp_v2 import DDPTransform
from thunder.distributed.transforms.fsdp_v2 import FSDPTransform
from thunder.distributed.utils import maybe_sort_waits
from thunder.executors.passes import _transform_for_operator_executor_execution
from thunder.transforms import ExtractionOnlyPrologueTransform
from thunder.transforms.autodiff import grad_transform_on_trace, split_into_forward_and_backward

__all__ = [
    "INTERPRETER_SIGNALS",
    "BoundSymbolRHS",
    "DDPTransform",
    "ExtractionOnlyPrologueTransform",
    "FSDPTransform",
    "FrozenDict",
    "TraceResults",
    "_apply_trace_proxy_rename",
    "_compile_data",
    "_transform_for_operator_executor_execution",
    "clang",
    "do_raise",
    "dtype_to_numbertype",
    "get_interpreterruntimectx",
    "get_jit_ctx",
    "grad_transform_on_trace",
    "interpreter",
    "interpreter_needs_wrap",
    "is_opaque",
    "is_proxy_name_available",
    "jit_ext",
    "maybe_sort_waits",
    "pytree",
    "split_into_forward_and_backward",
    "transform_common",
    "transform_for_execution",
    "update_tags",
    "wrap",
]
