"""Thunder's names for accelerators, executors and distributed models; see ``api.py`` for all others.

Each is looked up when it is first imported from here. Functions import names, so that one that a Thunder lacks switches
off one accelerator, and slow modules, such as ``dynamo_utils``. Modules that Thunder always imports stand at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "autocast": "thunder.transforms.autocast",
        "dynamo_utils": "thunder.dynamo.utils",
        "nvfuser_executor": "thunder.executors.nvfuserex_impl",
        "thunder": "thunder",
    }
)
"""Modules of Thunder that may be absent, or have other names here."""

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "thunder": "CacheEntry _cache_info_ctx",
        "thunder.clang.utils": "compute_broadcast_shape",
        "thunder.common": "transform_for_execution",
        "thunder.core": "interpreter jit_ext trace transform_common transforms utils vjp_utils",
        "thunder.core.baseutils": "ProxyInterface is_likely_from_collections_namedtuple",
        "thunder.core.interpreter": "interpreter_needs_wrap",
        "thunder.core.jit_ext": "ensure_recursive_proxies record_source_loc_in_symbol_header",
        "thunder.core.langctxs": "_langctx get_langctx resolve_language",
        "thunder.core.options": "SHARP_EDGES_OPTIONS",
        "thunder.core.proxies": "is_proxy_name_available",
        "thunder.core.pytree": "OPTREE_NAMESPACE",
        "thunder.core.recipe": "Plugin PluginPolicy",
        "thunder.core.symbol": "BoundSymbolRHS _bsym_header default_python_printer",
        "thunder.core.trace": "TraceResults",
        "thunder.core.transforms": "add_transform get_grad put_grads",
        "thunder.core.update_aliases": "insert_alias_updates",
        "thunder.core.utils": "FrozenDict dtype_to_numbertype",
        "thunder.distributed": "FSDPType ddp fsdp",
        "thunder.distributed.prims": "all_gather all_reduce reduce_scatter",
        "thunder.distributed.transforms.ddp_v2": "DDPTransform",
        "thunder.distributed.transforms.fsdp_v2": "FSDPTransform",
        "thunder.distributed.utils": "maybe_sort_waits",
        "thunder.executors": "sdpaex",
        "thunder.executors.data_dependent_partition": "Node consecutive_fusion fuse_bound_symbols",
        "thunder.executors.passes": "_transform_for_operator_executor_execution",
        "thunder.executors.torch_autograd": "ThunderFunction ThunderOutputFunction",
        "thunder.executors.torch_compile": "TorchCompileExecutor",
        "thunder.extend": "FUEL_LEVEL OperatorExecutor TemporaryExecutor register_executor",
        "thunder.torch": "to_torch_distributed_reduce_op",
        "thunder.transforms": "ExtractionOnlyPrologueTransform MaterializationTransform",
        "thunder.transforms.autodiff": "grad_transform_on_trace split_into_forward_and_backward",
    }
)
"""The names by the modules and packages of Thunder that contain them."""

_MODULE_OF = {name: module for module, names in NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Returns Thunder's object of that name, and stores it in this module, where a replacement finds it as well."""
    if name not in MODULES and name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in MODULES:
        found = import_module(MODULES[name])
    else:
        found = getattr(__import__(_MODULE_OF[name], fromlist=[name]), name)  # imports a module of a package
    globals()[name] = found
    return found
