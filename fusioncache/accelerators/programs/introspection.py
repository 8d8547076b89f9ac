"""What Python has of classes, modules and code: where it is found, and who wrote it. No code of theirs is run.

Classes and modules are read in C, below whatever a metaclass or a subclass has in its place. Reads find what they read
in modules that have been imported. What is named by its place in a package (``place_of``) has its sources in each key.

``torch._dynamo.mutation_guard`` puts functions of its own in place of ``Module.__init__`` and ``Module.__setstate__``
when Dynamo first runs in a process. They call the original, and then enter the module into a table that only Dynamo
asks. No trace depends on that. So classes are described as if the originals stood there, and what this tagging looks up
is no read. This holds for torch's own code only: with any other in its place there is no tagging here. Where it
compiled a function, Dynamo also adds names to that function's module, for nothing but the code that it made.
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
    """What is found where nothing is."""


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
"""Types of what classes written in C have."""


def is_static(cls: type) -> bool:
    """True if a class is a part of a program written in C, so that its attributes cannot change."""
    return not _flags_of(cls) & _HEAP


def is_written_in_python(cls: type) -> bool:
    """Returns whether a class is one whose attributes can be set, as those that a ``class`` statement makes."""
    return _flags_of(cls) & (_HEAP | _IMMUTABLE) == _HEAP


def is_dictionary(cls: type) -> bool:
    """Returns whether the instances of a class are dictionaries."""
    return bool(_flags_of(cls) & _DICTIONARY)


def is_derived(cls: type, base: type) -> bool:
    """Returns whether a class is another one or derived from it, whatever their metaclasses would say."""
    return any(each is base for each in mro_of(cls))


def find_in_class(cls: type, name: str) -> Any:
    """Returns what a class, or the first one of those that it is derived from, has under a name, or ``ABSENT``."""
    return find_in_first(mro_of(cls), name)


def find_in_first(classes: Iterable[type], name: str) -> Any:
    """Returns what the first of these classes that has the name in its own body has there, or ``ABSENT``."""
    return next((namespace_of(each)[name] for each in classes if name in namespace_of(each)), ABSENT)


def ids_of(*kinds: type) -> frozenset[int]:
    """Returns the identities of types, to look a type up: its own equality may be code of its metaclass."""
    return frozenset(map(id, kinds))


def by_identity[T](*pairs: tuple[type, T]) -> dict[int, T]:
    """Returns a table of what there is for each type, by its identity: its own hash may be code of its metaclass."""
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
"""Functions written in C that say something of torch's state or of the machine, and change nothing."""


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
    """True if this is the process's environment, which is not read as a whole."""
    return value is os.environ


def describe_variable(name: str) -> str:
    """Returns what stands for the value of a variable of the environment."""
    try:
        value = os.environ[name]
    except KeyError:
        return _UNSET
    return f"set, {write_text(value, TextKind.SECRET if find_kind(name) is TextKind.SECRET else TextKind.HIDDEN)}"


def write_question(name: str, args: tuple[Any, ...]) -> str:
    """Returns a question as Python that asks it."""
    return f"{name}({', '.join(map(repr, args))})"


def ask(question: str) -> Any:
    """Returns what one of ``QUERIES`` answers.

    Raises:
        LookupError: if it is none of these.
    """
    name, _, rest = question.partition("(")
    if name not in QUERIES:
        raise LookupError(f"{name} is not asked")
    args = ast.literal_eval(f"({rest.removesuffix(')')},)") if rest != ")" else ()
    return find_question(name)(*args)


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


_GUARD = "torch._dynamo.mutation_guard"
_TABLES = "torch._dynamo.utils"

MARK = "___needs_generation_tag_patch"
"""The attribute by which ``torch.nn.Module`` says that Dynamo did this."""

_ADDED = re.compile(
    r"__(builtins_dict_|compiled_fn|gen_rand_values|import|resume_at)_.+|___prev_torch_function_mode_stack_\d+|_(.*_)?\d+_c\d+"
)
"""Names that ``OutputGraph.install_global`` and ``install_global_by_id`` make up, and ``import_source``."""


def is_added(name: str) -> bool:
    """True if a name in a module is one that Dynamo adds, which no source names."""
    return name.startswith("_") and _ADDED.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Tagging:
    """The code that tags modules.

    Attributes:
        around: of the functions that stand around others.
        tag: of what they call then.
        enter: of what that calls, which others may call as well.
    """

    around: tuple[CodeType, ...] = ()
    tag: CodeType | None = None
    enter: CodeType | None = None

    def is_at_work(self, codes: Iterator[CodeType]) -> bool:
        """True if it is this code that runs.

        Args:
            codes: what runs, each called by the one behind it.
        """
        code = next(codes, None)
        if self.tag is None or code is None:
            return False
        return next(codes, None) is self.tag if code is self.enter else self.has(code)

    def has(self, code: CodeType) -> bool:
        """True if it is this code, which has no other caller."""
        return code is self.tag or any(code is each for each in self.around)


def find_tagging() -> Tagging:
    """Returns the code that tags modules in this process; none of it if it is not as torch has it."""
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
    """Returns the code of a function or a class method, if it is what the file of the module defines by this name."""
    function = function.__func__ if type(function) is classmethod else function
    code = function.__code__ if type(function) is FunctionType else None
    is_own = code is not None and (code.co_filename, code.co_qualname) == (module.get("__file__"), name)
    return code if is_own else None


def find_original(function: FunctionType) -> FunctionType:
    """Returns the function that one which tags modules stands around; any other function itself."""
    cells = function.__closure__
    if cells is None or len(cells) != 1 or not any(function.__code__ is each for each in find_tagging().around):
        return function
    original = cells[0].cell_contents
    return original if type(original) is FunctionType else function


_PACKAGES = frozenset({"thunder", "torch", "fusioncache", "nvfuser", "nvfuser_direct", *LIBRARIES})
"""Those of which the versions are in each key, beside Python's own modules."""


def place_of(value: Any) -> str:
    """Returns module and name of a class or of a function written in C."""
    owner = getattr(value, "__objclass__", None)
    module = getattr(owner or value, "__module__", None)
    return f"{module}.{value.__qualname__}"


def is_known(module: str) -> bool:
    """True if a module is one of those packages' or of Python's own."""
    package = module.partition(".")[0]
    return package in _PACKAGES or package in sys.stdlib_module_names


def has_only_attributes(kind: type) -> bool:
    """True if all that there is to an object of a class is in its ``__dict__``, where only Thunder put it."""
    bases = [base for base in kind.__mro__ if base is not object]
    own = all(base.__module__.startswith("thunder.") and not vars(base).get("__slots__") for base in bases)
    return own and kind.__dictoffset__ != 0


def is_generated(file: str, module: str | None) -> bool:
    """True if Python itself made a function: for a dataclass or a named tuple, or from a source in its core."""
    has_module = module is not None and (is_known(module) or module.startswith("namedtuple_"))
    return file.startswith("<frozen ") or (file == "<string>" and has_module)


@cache
def shorten_file(file: str) -> str:
    """Returns the path of a source from where its package begins; empty if it is in none of those."""
    folders = _list_folders(_PACKAGES.intersection(sys.modules))  # some are imported late
    return next((f"{name}/{file[len(folder) :]}" for name, folder in folders if file.startswith(folder)), "")


@cache
def _list_folders(imported: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Returns the folder of each package, and those of Python's own modules. Packages may lie in a folder of those."""
    # The module that stands for nvFuser's old name is in no file.
    packages = [(name, getattr(sys.modules[name], "__file__", None)) for name in sorted(imported)]
    library = sysconfig.get_path("stdlib")
    own = [(f"python/{name}", os.path.join(library, name)) for name in sorted(sys.stdlib_module_names)]
    return (
        *((name, os.path.dirname(file) + os.sep) for name, file in packages if file),
        *((name, path + os.sep) for name, path in own if os.path.isdir(path)),
        *((name, path + ".py") for name, path in own),
    )


def sum_code(code: CodeType) -> int:
    """Returns a checksum of a code object: instructions, names and constants, also of those that are nested in it.

    It tells it from one that was put in its place, and a lambda from another one in the same line. To digest all that
    there is to a code object, as is done for those of others, would take ten times as long.

    Raises:
        ValueError: if there is an object among its constants that code does not come with.
    """
    constants = [sum_code(each) if type(each) is CodeType else each for each in code.co_consts]
    # Of this version equal constants have equal bytes: nothing is said of what is shared, and sets are sorted.
    return zlib.crc32(marshal.dumps((code.co_code, code.co_names, constants), 2))
