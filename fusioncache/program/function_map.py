"""The ingredient ``function map``: what Thunder makes of each function of torch, and all else that its modules hold.

Thunder runs its own functions as they are: nothing records what they look up. So its modules are looked over whole:
tables of functions, lookasides and rules of differentiation, flags, and each function and class. Whatever was put there
by somebody else, or taken away, changes the text. How an entry is named is told in ``definitions.py``.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fusioncache.ir.key_text import NamedValue
from fusioncache.program.definitions import Definitions

_MODULES = (
    "thunder",
    "thunder.clang",
    "thunder.clang.langctx",
    "thunder.clang.utils",
    "thunder.common",
    "thunder.core.baseutils",
    "thunder.core.codeutils",
    "thunder.core.compile_data",
    "thunder.core.devices",
    "thunder.core.dtypes",
    "thunder.core.interpreter",
    "thunder.core.jit_ext",
    "thunder.core.langctxs",
    "thunder.core.module",
    "thunder.core.options",
    "thunder.core.patterns",
    "thunder.core.prims",
    "thunder.core.profile",
    "thunder.core.proxies",
    "thunder.core.pytree",
    "thunder.core.rematerialization",
    "thunder.core.symbol",
    "thunder.core.trace",
    "thunder.core.trace_interpreter",
    "thunder.core.transform_common",
    "thunder.core.transforms",
    "thunder.core.update_aliases",
    "thunder.core.utils",
    "thunder.core.vjp_utils",
    "thunder.distributed.prims",
    "thunder.distributed.utils",
    "thunder.executors.data_dependent_partition",
    "thunder.executors.nvfuserex",
    "thunder.executors.passes",
    "thunder.executors.pythonex",
    "thunder.executors.torch_autograd",
    "thunder.executors.torchex",
    "thunder.executors.utils",
    "thunder.extend",
    "thunder.torch",
    "thunder.torch.custom_op",
    "thunder.torch.default_torch_ops",
    "thunder.torch.langctx",
    "thunder.transforms.autocast",
    "thunder.transforms.autodiff",
)
"""Those whose code takes part in deriving a program. All are imported by then."""

FOREIGN = "foreign."
"""What names of functions and classes of somebody else begin with that Thunder may run while it derives a program."""

_CHANGING = frozenset(
    {
        ("thunder.core.baseutils", "_exec_ctr"),
        ("thunder.core.interpreter", "builtins_dict"),
        ("thunder.core.vjp_utils", "_cache"),
        ("thunder.extend", "_executor_map"),
        ("thunder.extend", "_default_executors"),
        ("thunder.extend", "_always_executors"),
    }
)
"""What changes while Thunder traces, or is elsewhere: counters, caches of what is derived again; executors, which are
options; Python's builtins, which are reads."""


_SKIPPED = frozenset(
    {"__annotations__", "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__path__", "__spec__"}
    | {"__warningregistry__"}
)
_SKIPPED_IN_CLASSES = frozenset(
    {"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__module__"}
    | {"__orig_bases__", "__parameters__", "__slotnames__", "__weakref__", "_abc_impl"}
)
"""What nobody asks while a program is derived, or is said elsewhere: of dataclasses by the methods made for them."""


def read_function_map(definitions: Definitions) -> Iterator[NamedValue]:
    """Yields what was written by others, by its place, then a digest of each entry of the function map and each module.

    Raises:
        NoValue: if something that was put there cannot be described.
    """
    modules = [importlib.import_module(name) for name in _MODULES]
    digests: list[NamedValue] = []
    for module in modules:
        lines = []
        for name, value in _iterate_definitions(module):
            text = definitions.name(value)
            lines.append(f"{name} {text}")
            if definitions.is_foreign(value):
                yield f"{module.__name__}.{name}", text
        digests.append((module.__name__, _digest("\n".join(sorted(lines)))))
    yield from sorted(_read_entries(definitions))
    yield from digests
    # Executors were named before: these are all that are not trusted.
    yield from ((f"{FOREIGN}{place}", "is run by Thunder") for place in definitions.foreign)


def _iterate_definitions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yields what a module holds, and what its own classes hold, by name."""
    for name, value in list(vars(module).items()):
        if name in _SKIPPED or (module.__name__, name) in _CHANGING or _is_own_module(module, name, value):
            continue
        yield name, value
        if isinstance(value, type) and value.__module__ == module.__name__:
            members = ((f"{name}.{key}", each) for key, each in vars(value).items() if key not in _SKIPPED_IN_CLASSES)
            yield from members


def _is_own_module(package: ModuleType, name: str, value: Any) -> bool:
    """Tells whether a package holds one of its modules, which it does from when somebody first imports that."""
    return isinstance(value, ModuleType) and value.__name__ == f"{package.__name__}.{name}"


def _read_entries(definitions: Definitions) -> Iterator[tuple[str, str]]:
    from thunder.torch import _torch_to_thunder_function_map

    for key, value in list(_torch_to_thunder_function_map.items()):
        text = definitions.name(value)
        # Several functions may be called the same. Whether keys are equal the digests of the modules decide.
        digest = f"{zlib.crc32(f'{definitions.name(key)} {text}'.encode()):08x}"
        yield f"map.{write_callable(key)}", f"{text} {digest}" if definitions.is_foreign(value) else digest


def write_callable(function: Any) -> str:
    """Returns what people call a function of torch: module and name, without spaces."""
    owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or str(getattr(function, "__name__", type(function).__qualname__))
    place = getattr(owner if isinstance(owner, type) else function, "__module__", None) or "torch"
    return f"{place}.{name.removeprefix('_VariableFunctionsClass.')}".replace(" ", "_")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
