"""Thunder's names for reading and writing regions and templates, and for all accelerators.

``tests/thunder_adapter/test_api.py`` checks on real traces what fusioncache expects of them. Few of them are public in
Thunder, so a new version is supported only if those tests pass.
"""

# ruff: noqa: F401
from __future__ import annotations

import thunder.torch as ltorch
from thunder.common import CompileData, CompileStats
from thunder.core import devices, dtypes, prims, proxies, rematerialization, utils
from thunder.core.baseutils import build_callable
from thunder.core.codeutils import SigInfo
from thunder.core.compile_data import _compile_data, compile_data_and_stats, get_compile_data
from thunder.core.devices import Device, DeviceType
from thunder.core.dtypes import to_torch_dtype
from thunder.core.langctxs import Languages, langctx
from thunder.core.module import ThunderModule
from thunder.core.options import CACHE_OPTIONS
from thunder.core.prims import OpTags, PrimIDs, get_grad, put_grad
from thunder.core.proxies import (
    CONSTRAINT,
    CollectionProxy,
    ComplexProxy,
    FloatProxy,
    FutureTensorProxy,
    IntegerProxy,
    NumberProxy,
    Proxy,
    TensorProxy,
    Variable,
    unvariableify,
    variableify,
)
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, TraceTag, from_trace, get_tracectx, tracectx
from thunder.core.transform_common import Transform, dce
from thunder.core.transforms import register_grad
from thunder.distributed import get_skip_data_parallel_grad_sync
from thunder.distributed.prims import DistributedReduceOps
from thunder.executors import pythonex, torchex
from thunder.executors.passes import del_last_used, transform_for_execution, update_fusion_call_ctx
from thunder.executors.pythonex import ex as python_executor
from thunder.executors.torchex import ex as torch_executor
from thunder.executors.torchex import no_autocast
from thunder.executors.utils import Region
from thunder.extend import (
    Executor,
    FusionExecutor,
    ImplInfo,
    OperatorExecutor,
    get_all_executors,
    get_always_executors,
    get_default_executors,
    get_executor,
    register_executor,
)

from fusioncache.thunder_adapter import call_waiting

call_waiting()
