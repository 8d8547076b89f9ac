"""What Dynamo puts around the making of modules from when it first ran in a process: it tags each new one.

``torch._dynamo.mutation_guard`` has functions of its own in place of ``Module.__init__`` and ``Module.__setstate__``.
They call the original, and then enter the module into a table that only Dynamo asks. No trace depends on that, and a
process without Dynamo makes the same one. So classes are described as if the originals stood there, and what tagging
looks up is no read. This holds for torch's own code only: with any other in its place there is nothing here.

Where it compiled a function, Dynamo also adds names to that function's module, for nothing but the code that it made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_GUARD = "torch._dynamo.mutation_guard"
_TABLES = "torch._dynamo.utils"

MARK = "___needs_generation_tag_patch"
"""The attribute by which ``torch.nn.Module`` says that Dynamo did this."""

_ADDED = re.compile(
    r"__(builtins_dict_|compiled_fn|gen_rand_values|import|resume_at)_.+|___prev_torch_function_mode_stack_\d+|_(.*_)?\d+_c\d+"
)
"""Names that ``OutputGraph.install_global`` and ``install_global_by_id`` make up, and ``import_source``."""


def is_added(name: str) -> bool:
    """Tells whether a name in a module is one that Dynamo adds, which no source names."""
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
        """Tells whether it is this code that runs.

        Args:
            codes: what runs, each called by the one behind it.
        """
        code = next(codes, None)
        if self.tag is None or code is None:
            return False
        return next(codes, None) is self.tag if code is self.enter else self.has(code)

    def list_codes(self) -> tuple[CodeType | None, ...]:
        """Returns all of it."""
        return (*self.around, self.tag, self.enter)

    def has(self, code: CodeType) -> bool:
        """Tells whether it is this code, which nobody else calls."""
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


def may_tag(function: FunctionType) -> bool:
    """Returns whether a function is of the file that tags modules."""
    return function.__code__.co_filename.endswith("mutation_guard.py")


def find_original(function: FunctionType) -> FunctionType:
    """Returns the function that one which tags modules stands around; any other function itself."""
    cells = function.__closure__
    if cells is None or len(cells) != 1 or not any(function.__code__ is each for each in find_tagging().around):
        return function
    original = cells[0].cell_contents
    return original if type(original) is FunctionType else function
