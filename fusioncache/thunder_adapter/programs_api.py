"""The names of Thunder that programs are recorded, stored and built with."""

from __future__ import annotations

import thunder
from thunder.core import interpreter, jit_ext, trace, vjp_utils
from thunder.core.baseutils import ProxyInterface, is_likely_from_collections_namedtuple
from thunder.core.codeutils import SigInfo, module_shortname
from thunder.core.compile_data import _compile_data
from thunder.core.interpreter import (
    MappingItemsWrapper,
    MappingKeysView,
    MappingValuesWrapper,
    ThunderInterpreterObject,
    get_interpreterruntimectx,
)
from thunder.core.jit_ext import EXT_FLAG_IS_MODULE_MEMBER_DICT, get_jit_ctx
from thunder.core.langctxs import get_langctx
from thunder.core.options import SHARP_EDGES_OPTIONS
from thunder.core.pytree import OPTREE_NAMESPACE
from thunder.core.symbol import default_python_printer
from thunder.executors.nvfuserex import nvfuser_version
from thunder.executors.torch_autograd import ThunderFunction, ThunderOutputFunction
from thunder.extend import FUEL_LEVEL, TemporaryExecutor

__all__ = [
    "EXT_FLAG_IS_MODULE_MEMBER_DICT",
    "FUEL_LEVEL",
    "OPTREE_NAMESPACE",
    "SHARP_EDGES_OPTIONS",
    "MappingItemsWrapper",
    "MappingKeysView",
    "MappingValuesWrapper",
    "ProxyInterface",
    "SigInfo",
    "TemporaryExecutor",
    "ThunderFunction",
    "ThunderInterpreterObject",
    "ThunderOutputFunction",
    "_compile_data",
    "default_python_printer",
    "get_interpreterruntimectx",
    "get_jit_ctx",
    "get_langctx",
    "interpreter",
    "is_likely_from_collections_namedtuple",
    "jit_ext",
    "module_shortname",
    "nvfuser_version",
    "thunder",
    "trace",
    "vjp_utils",
]
