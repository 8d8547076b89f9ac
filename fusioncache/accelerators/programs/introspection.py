"""Introspection of classes, modules and code objects: lookup by name, and origin. Runs no code of what it looks at.

Classes and modules are read through C descriptors, below any override in a metaclass or a subclass. Reads are resolved
in modules that have been imported. The sources of what is named by its place in a package (``place_of``) are in each
key.

When Dynamo first runs in a process, ``torch._dynamo.mutation_guard`` replaces ``Module.__init__`` and
``Module.__setstate__`` by wrappers. These call the original and then enter the module into a table that only Dynamo
reads (*tagging*). No trace depends on the table. So classes are described as if the originals were in place, and
lookups by the tagging code are not recorded as reads. This holds for torch's code only: replaced code is not recognized
as tagging. Dynamo also adds names to the module of a function that it compiled; only the code that it generated uses
them.
"""

from __future__ import annotations

import ast
import builtins
import marshal
import os
import re
import sys
import sysconfig
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType
from typing import Any

from fusioncache.backends.versions import LIBRARIES
from fusioncache.process.secrets import TextKind, find_kind, write_text


class _Absent:
    """Type of ``ABSENT``, the result of a lookup that finds nothing."""


ABSENT = _Absent()

mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
namespace_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
contents_of_module: Callable[[types.ModuleType], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__

_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
_HEAP = 1 << 9
_IMMUTABLE = 1 << 8
_DICTIONARY = 1 << 29


DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
"""Types of the descriptors in the namespaces of classes written in C."""


def is_static(cls: type) -> bool:
    """True if a class is a static type, written in C and not on the heap, so that its attributes cannot change."""
    return not _flags_of(cls) & _HEAP


def is_written_in_python(cls: type) -> bool:
    """True if the attributes of a class can be set, as with classes that a ``class`` statement makes."""
    return _flags_of(cls) & (_HEAP | _IMMUTABLE) == _HEAP


def is_dictionary(cls: type) -> bool:
    """True if the instances of a class are dictionaries."""
    return bool(_flags_of(cls) & _DICTIONARY)


def is_derived(cls: type, base: type) -> bool:
    """True if the MRO of a class contains another one. Runs no code of a metaclass."""
    return any(each is base for each in mro_of(cls))


def find_in_class(cls: type, name: str) -> Any:
    """Returns the value of a name in the namespaces of a class's MRO, or ``ABSENT``."""
    return find_in_first(mro_of(cls), name)


def find_in_first(classes: Iterable[type], name: str) -> Any:
    """Returns the value of a name in the first of these classes with the name in its own namespace, or ``ABSENT``."""
    return next((namespace_of(each)[name] for each in classes if name in namespace_of(each)), ABSENT)


def list_derived(cls: type) -> list[type]:
    """Returns a class and all classes derived from it, which an abstract base class asks about its instances."""
    found, pending = dict[int, type](), [cls]
    while pending:
        each = pending.pop()
        if id(each) not in found:
            found[id(each)] = each
            pending += type.__subclasses__(each)
    return [*found.values()]


def ids_of(*kinds: type) -> frozenset[int]:
    """Returns the ids of types, for lookup by identity: the equality of a type may be code of its metaclass."""
    return frozenset(map(id, kinds))


def by_identity[T](*pairs: tuple[type, T]) -> dict[int, T]:
    """Returns a table of values by the ids of their types: the hash of a type may be code of its metaclass."""
    return {id(kind): value for kind, value in pairs}


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
"""Functions written in C that return torch's state or a property of the machine, and have no side effects."""


def find_module(name: object) -> dict[str, Any]:
    """Returns the namespace of a module that has been imported.

    Raises:
        LookupError: if it has not been imported, or the name is not a string.
    """
    if type(name) is not str:
        raise LookupError("a module has a name that is no text")
    module = sys.modules.get(name)
    if module is None and name.startswith(_OPERATIONS):  # namespaces of torch.ops are not in sys.modules
        module = find_module(_OPERATIONS.rstrip(".")).get(name.removeprefix(_OPERATIONS))
    if not isinstance(module, types.ModuleType):
        raise LookupError(f"the module {name} has not been imported")
    return contents_of_module(module)


def is_found(name: object, module: types.ModuleType) -> bool:
    """True if a module is the one that is found under a name."""
    try:
        return find_module(name) is contents_of_module(module)
    except LookupError:
        return False


def find_module_name(namespace: Mapping[str, Any]) -> str | None:
    """Returns the name under which ``sys.modules`` has the module with this namespace; None if none has it."""
    spec = namespace.get("__spec__")
    for name in (namespace.get("__name__"), spec.name if type(spec) is ModuleSpec else None):
        module = sys.modules.get(name) if type(name) is str else None
        if isinstance(module, types.ModuleType) and contents_of_module(module) is namespace:
            return name
    return None


def find_attribute(module: str, name: str) -> Any:
    """Returns the value of a module's attribute, or ``ABSENT``.

    Raises:
        LookupError: if the module has not been imported.
    """
    return find_module(module).get(name, ABSENT)


def find_global(module: str, name: str) -> Any:
    """Returns the value of a global name for code in a module: the module's, else the builtin, or ``ABSENT``.

    Raises:
        LookupError: if the module has not been imported.
    """
    names = find_module(module)
    found = names.get(name, ABSENT)
    return found if found is not ABSENT else find_builtins(names).get(name, ABSENT)


def find_builtins(names: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the builtins of a namespace.

    Raises:
        LookupError: if they are not the standard ones.
    """
    own = names.get("__builtins__", builtins)
    if own is not builtins and own is not vars(builtins):
        raise LookupError("a namespace has builtins of its own")
    return vars(builtins)


def find_qualified(module: object, name: str) -> Any:
    """Returns the object with a qualified name in a module, read from the namespaces of classes.

    Raises:
        LookupError: if it does not exist, or the module has not been imported.
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


def is_under_its_name(definition: Any) -> bool:
    """True if a function or a class is the object found under its name, or what a tagging wrapper there wraps."""
    try:
        found = find_qualified(definition.__module__, definition.__qualname__)
    except LookupError:
        return False
    return found is definition or (type(found) is FunctionType and find_original(found) is definition)


def is_environment(value: object) -> bool:
    """True if this is ``os.environ``, which is not read as a whole."""
    return value is os.environ


def describe_variable(name: str) -> str:
    """Returns a text that represents the value of an environment variable: ``unset``, or ``set`` with a digest."""
    try:
        value = os.environ[name]
    except KeyError:
        return _UNSET
    return f"set, {write_text(value, TextKind.SECRET if find_kind(name) is TextKind.SECRET else TextKind.HIDDEN)}"


def write_query(name: str, args: tuple[Any, ...]) -> str:
    """Returns a query as a Python call."""
    return f"{name}({', '.join(map(repr, args))})"


def answer(query: str) -> Any:
    """Returns the result of a query, a call of one of ``QUERIES``.

    Raises:
        LookupError: if it calls another function.
    """
    name, _, rest = query.partition("(")
    if name not in QUERIES:
        raise LookupError(f"{name} is not asked")
    args = ast.literal_eval(f"({rest.removesuffix(')')},)") if rest != ")" else ()
    return find_query(name)(*args)


def find_query(name: str) -> Any:
    """Returns the function that answers a query.

    Raises:
        LookupError: if it does not exist, or it is not a function written in C.
    """
    module, _, last = name.rpartition(".")
    found = find_attribute(module, last)
    if not isinstance(found, types.BuiltinFunctionType):
        raise LookupError(f"{name} is not torch's own")
    return found


_GUARD = "torch._dynamo.mutation_guard"
_TABLES = "torch._dynamo.utils"

MARK = "___needs_generation_tag_patch"
"""The attribute that Dynamo sets on ``torch.nn.Module`` when it has installed the tagging."""

_ADDED = re.compile(
    r"__(builtins_dict_|compiled_fn|gen_rand_values|import|resume_at)_.+|___prev_torch_function_mode_stack_\d+|_(.*_)?\d+_c\d+"
)
"""Names that ``OutputGraph.install_global``, ``install_global_by_id`` and ``import_source`` generate."""


def is_added(name: str) -> bool:
    """True if a name in a module is one that Dynamo adds. No source uses such a name."""
    return name.startswith("_") and _ADDED.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Tagging:
    """The code objects of Dynamo's tagging of modules.

    Attributes:
        around: of the wrappers of ``__init__`` and ``__setstate__``.
        tag: of ``GenerationTracker.tag``, which the wrappers call.
        enter: of ``ExactWeakKeyDictionary.__setitem__``, which ``tag`` calls, and other callers may call as well.
    """

    around: tuple[CodeType, ...] = ()
    tag: CodeType | None = None
    enter: CodeType | None = None

    def is_running(self, codes: Iterator[CodeType]) -> bool:
        """True if the innermost frame runs tagging code.

        Args:
            codes: of the call stack, innermost frame first.
        """
        code = next(codes, None)
        if self.tag is None or code is None:
            return False
        return next(codes, None) is self.tag if code is self.enter else self.has(code)

    def has(self, code: CodeType) -> bool:
        """True if a code object is a wrapper's or ``tag``'s. Only tagging runs these."""
        return code is self.tag or any(code is each for each in self.around)


def find_tagging() -> Tagging:
    """Returns the code objects of the tagging in this process; an empty ``Tagging`` if one is not torch's original."""
    guard, tables = (vars(sys.modules[name]) if name in sys.modules else {} for name in (_GUARD, _TABLES))
    tracker, table = guard.get("GenerationTracker"), tables.get("ExactWeakKeyDictionary")
    tag = _code_of(vars(tracker).get("tag"), guard, "GenerationTracker.tag") if isinstance(tracker, type) else None
    install = _code_of(guard.get("install_generation_tagging_init"), guard, "install_generation_tagging_init")
    name = "ExactWeakKeyDictionary.__setitem__"
    enter = _code_of(vars(table).get("__setitem__"), tables, name) if isinstance(table, type) else None
    if tag is None or install is None or enter is None or type(vars(tracker).get("generation_values")) is not table:
        return Tagging()
    return Tagging(tuple(each for each in install.co_consts if isinstance(each, CodeType)), tag, enter)


def _code_of(function: Any, module: dict[str, Any], name: str) -> CodeType | None:
    """Returns the code of a function or class method if the module's file defines it under this name, else None."""
    function = function.__func__ if type(function) is classmethod else function
    code = function.__code__ if type(function) is FunctionType else None
    is_own = code is not None and (code.co_filename, code.co_qualname) == (module.get("__file__"), name)
    return code if is_own else None


def find_original(function: FunctionType) -> FunctionType:
    """Returns the function that a tagging wrapper wraps; any other function unchanged."""
    cells = function.__closure__
    if cells is None or len(cells) != 1 or not any(function.__code__ is each for each in find_tagging().around):
        return function
    original = cells[0].cell_contents
    return original if type(original) is FunctionType else function


_PACKAGES = frozenset({"thunder", "torch", "fusioncache", "nvfuser", "nvfuser_direct", *LIBRARIES})
"""Packages whose versions are in each key, as is that of Python."""


def place_of(value: Any) -> str:
    """Returns module and name of a class or of a function written in C."""
    owner = getattr(value, "__objclass__", None)
    module = getattr(owner or value, "__module__", None)
    return f"{module}.{value.__qualname__}"


def is_known(module: str) -> bool:
    """True if a module belongs to one of ``_PACKAGES`` or to the standard library."""
    package = module.partition(".")[0]
    return package in _PACKAGES or package in sys.stdlib_module_names


def has_only_attributes(kind: type) -> bool:
    """True if the whole state of a class's instances is in ``__dict__``, and all its bases are Thunder's."""
    bases = [base for base in kind.__mro__ if base is not object]
    own = all(base.__module__.startswith("thunder.") and not vars(base).get("__slots__") for base in bases)
    return own and kind.__dictoffset__ != 0


def is_generated(file: str, module: str | None) -> bool:
    """True if Python generated a function for a dataclass of a known module or a named tuple, or its file is frozen."""
    has_module = module is not None and (is_known(module) or module.startswith("namedtuple_"))
    return file.startswith("<frozen ") or (file == "<string>" and has_module)


@cache
def shorten_file(file: str) -> str:
    """Returns the path of a source file, beginning with its package; empty if that is neither known nor Python's."""
    folders = _list_folders(_PACKAGES.intersection(sys.modules))  # some are imported late
    return next((f"{name}/{file[len(folder) :]}" for name, folder in folders if file.startswith(folder)), "")


@cache
def _list_folders(imported: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Returns the folders of packages, then the places of the standard library, in which packages may lie."""
    # The alias module for nvFuser's old name has no file.
    packages = [(name, getattr(sys.modules[name], "__file__", None)) for name in sorted(imported)]
    library = sysconfig.get_path("stdlib")
    own = [(f"python/{name}", os.path.join(library, name)) for name in sorted(sys.stdlib_module_names)]
    return (
        *((name, os.path.dirname(file) + os.sep) for name, file in packages if file),
        *((name, path + os.sep) for name, path in own if os.path.isdir(path)),
        *((name, path + ".py") for name, path in own),
    )


def sum_code(code: CodeType) -> int:
    """Returns a checksum of a code object: instructions, names and constants, including nested code objects.

    It detects a replaced code object, and distinguishes two lambdas on one line. The full digest that foreign code gets
    would take ten times as long.

    Raises:
        ValueError: if its constants contain an object that no compiler puts there.
    """
    constants = [sum_code(each) if type(each) is CodeType else each for each in code.co_consts]
    # In version 2 of the format equal constants have equal bytes: it writes no references, and sets are sorted.
    return zlib.crc32(marshal.dumps((code.co_code, code.co_names, constants), 2))
