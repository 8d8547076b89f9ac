"""Where reads find what they read: in modules that have been imported, without running any code of theirs."""

from __future__ import annotations

import ast
import builtins
import os
import sys
import types
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from typing import Any, Protocol

from fusioncache.accelerators.programs.introspection import ABSENT, contents_of_module, find_in_class
from fusioncache.process.secrets import Kind, find_kind, write_text

_UNSET = "unset"
_OPERATIONS = "torch.ops."

QUERIES = (
    "torch.get_default_dtype",
    "torch.is_grad_enabled",
    "torch.is_inference_mode_enabled",
    "torch.is_autocast_enabled",
    "torch.is_autocast_cache_enabled",
    "torch.is_autocast_cpu_enabled",
    "torch.get_autocast_dtype",
    "torch.get_autocast_cpu_dtype",
    "torch.get_autocast_gpu_dtype",
    "torch.is_anomaly_enabled",
    "torch._C._get_deterministic_algorithms",
    "torch._C._get_tracing_state",
    "torch._C._is_tracing",
    "torch._C._get_privateuse1_backend_name",
    "torch._C._is_torch_function_enabled",
    "torch._C._is_torch_function_all_disabled",
    "torch._C._is_any_autocast_enabled",
    "torch._C._is_autocast_available",
    "torch._C._are_functorch_transforms_active",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._functorch.maybe_current_level",
    "torch._C._cuda_getDeviceCount",
    "torch._C._cuda_isInBadFork",
    "torch._C._get_cudnn_enabled",
    "torch._C._get_cudnn_benchmark",
    "torch._C._get_cudnn_deterministic",
    "torch._C._get_cudnn_allow_tf32",
    "torch._C._get_cublas_allow_tf32",
    "torch._C._get_float32_matmul_precision",
    "torch._C._get_flash_sdp_enabled",
    "torch._C._get_mem_efficient_sdp_enabled",
    "torch._C._get_math_sdp_enabled",
    "torch._C._get_cudnn_sdp_enabled",
    "torch._C._mps_is_available",
)
"""Functions written in C that say something of torch's state or of the machine, and change nothing."""


class Describing(Protocol):
    """What describes values."""

    def describe(self, value: object, name: object = None) -> str:
        """Returns the text of a value, which may go by a name."""


def find_module(name: object) -> dict[str, Any]:
    """Returns the names of a module that has been imported.

    Raises:
        LookupError: if it has not, or this is no text.
    """
    if type(name) is not str:
        raise LookupError("a module has a name that is no text")
    module = sys.modules.get(name)
    if module is None and name.startswith(_OPERATIONS):  # whose namespaces are no modules of Python's
        module = find_module(_OPERATIONS.rstrip(".")).get(name.removeprefix(_OPERATIONS))
    if not isinstance(module, types.ModuleType):
        raise LookupError(f"the module {name} has not been imported")
    return contents_of_module(module)


def find_module_name(namespace: Mapping[str, Any]) -> str | None:
    """Returns the name under which the module is found whose names these are; None if they are no module's."""
    spec = namespace.get("__spec__")
    for name in (namespace.get("__name__"), spec.name if type(spec) is ModuleSpec else None):
        module = sys.modules.get(name) if type(name) is str else None
        if isinstance(module, types.ModuleType) and contents_of_module(module) is namespace:
            return name
    return None


def find_attribute(module: str, name: str) -> Any:
    """Returns what a module has by a name, or ``ABSENT``.

    Raises:
        LookupError: if the module has not been imported.
    """
    return find_module(module).get(name, ABSENT)


def find_global(module: str, name: str) -> Any:
    """Returns what code in a module finds under a name, in the module or among the builtins, or ``ABSENT``.

    Raises:
        LookupError: if the module has not been imported.
    """
    names = find_module(module)
    found = names.get(name, ABSENT)
    return found if found is not ABSENT else find_builtins(names).get(name, ABSENT)


def find_builtins(names: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the builtins of a namespace.

    Raises:
        LookupError: if it has others than all code has.
    """
    own = names.get("__builtins__", builtins)
    if own is not builtins and own is not vars(builtins):
        raise LookupError("a namespace has builtins of its own")
    return vars(builtins)


def find_qualified(module: object, name: str) -> Any:
    """Returns what is defined in a module under a qualified name, as classes have it in their bodies.

    Raises:
        LookupError: if there is no such thing.
    """
    first, *others = name.split(".")
    found = find_module(module).get(first, ABSENT)
    for each in others:
        if not isinstance(found, type):
            raise LookupError(f"{name} is not in a class")
        found = find_in_class(found, each)
    if found is ABSENT:
        raise LookupError(f"there is no {name} in {module}")
    return found


def is_environment(value: object) -> bool:
    """Tells whether this is the process's environment, which is not read as a whole."""
    return value is os.environ


def list_environment_parts() -> dict[str, Any]:
    """Returns what the environment's object consists of but the variables, which are read one by one."""
    return {name: part for name, part in vars(os.environ).items() if name != "_data"}


def describe_variable(name: str) -> str:
    """Returns what stands for the value of a variable of the environment."""
    try:
        value = os.environ[name]
    except KeyError:
        return _UNSET
    return f"set, {write_text(value, Kind.SECRET if find_kind(name) is Kind.SECRET else Kind.HIDDEN)}"


def write_question(name: str, args: tuple[Any, ...]) -> str:
    """Returns a question as Python that asks it."""
    return f"{name}({', '.join(map(repr, args))})"


def ask(question: str, describer: Describing) -> str:
    """Returns what one of ``QUERIES`` answers.

    Raises:
        LookupError: if it is none of these.
    """
    name, _, rest = question.partition("(")
    if name not in QUERIES:
        raise LookupError(f"{name} is not asked")
    args = ast.literal_eval(f"({rest.removesuffix(')')},)") if rest != ")" else ()
    return describer.describe(find_question(name)(*args))


def find_question(name: str) -> Any:
    """Returns the function that answers a question.

    Raises:
        LookupError: if there is none, or another one than torch's own.
    """
    module, _, last = name.rpartition(".")
    found = find_attribute(module, last)
    if not isinstance(found, types.BuiltinFunctionType):
        raise LookupError(f"{name} is not torch's own")
    return found
