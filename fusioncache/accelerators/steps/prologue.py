"""A prologue written anew: the same statements in the same order, with checks that are called only where they decide.

    i1: "int 256" = module.n_embd             i1: "int 256" = module.n_embd
    check_number_type_and_value(i1, 256)      if not (type(i1) is int and i1 == 256):
                                                check_number_type_and_value(i1, 256)

Where a condition holds, the check would have passed without any other effect. Where it does not hold, the check is
called after all, and decides. So a condition may be as narrow as it is quick, and what a check raises is its own.

Everything else stays as it is, attributes above all: to read one may run user code.

To write one takes as long as some hundred calls of it save: a model that is called once or twice keeps Thunder's.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from fusioncache.ir.errors import Declined, Scope, is_declined
from fusioncache.process.collector import without_collector
from fusioncache.process.sources import show_lines

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class Names:
    """What conditions may refer to.

    Attributes:
        known: the names that the prologue has from its globals alone, with their values.
        prefix: what new names begin with; no other name does.
        values: those of the new names.
    """

    known: Mapping[str, Any]
    prefix: str
    values: dict[str, Any] = field(default_factory=dict)

    def give(self, value: Any) -> str:
        """Returns a name for a value: the same for the same object, and for equal devices."""
        for name, other in self.values.items():
            if other is value or (type(other) is type(value) and _is_device(value) and other == value):
                return name
        self.values[name := f"{self.prefix}{len(self.values)}"] = value
        return name

    def resolve(self, expression: ast.expr) -> Any:
        """Returns the value of a name, or of an attribute of a module that has a name; None for anything else."""
        if isinstance(expression, ast.Name):
            return self.known.get(expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self.resolve(expression.value)
            return vars(owner).get(expression.attr) if isinstance(owner, ModuleType) else None
        return None


Condition = Callable[..., str | None]
"""Writes when a check passes for sure, from ``Names``, the name of what is checked, and the other arguments.

None stands for a check that is better called.
"""


@cache
def find_conditions() -> Mapping[Callable[..., Any], Condition]:
    """Returns how to write the condition of each of Thunder's checks that has one, by the function that checks."""
    from fusioncache.thunder_adapter.api import pythonex

    return {
        pythonex._check_number_type_and_value_impl: _is_number,
        pythonex._check_string_value_impl: _is_string,
        pythonex._check_none_impl: _is_none,
        pythonex._check_type_impl: _has_type,
        pythonex._check_len_impl: _has_length,
        pythonex._check_empty_impl: _is_empty,
        pythonex._check_literal_like_impl: _is_dtype,
        pythonex._check_tensor_shape_and_metadata_impl: _is_tensor,
    }


def _is_number(names: Names, checked: str, value: ast.expr) -> str | None:
    number = _read(value)
    if type(number) is bool:
        return f"{checked} is {number}"
    is_written = type(number) is int or (type(number) is float and math.isfinite(number))
    return _is_exactly(names, checked, number) if is_written else None


def _is_string(names: Names, checked: str, value: ast.expr) -> str | None:
    text = _read(value)
    return _is_exactly(names, checked, text) if type(text) is str else None


def _is_exactly(names: Names, checked: str, value: Any) -> str:
    """Returns the condition that something has a value's own type and is equal to it, without a user's ``__eq__``."""
    return f"{names.give(type)}({checked}) is {names.give(type(value))} and {checked} == {value!r}"


def _is_none(names: Names, checked: str) -> str:
    return f"{checked} is None"


def _has_type(names: Names, checked: str, type_: ast.expr) -> str | None:
    found = names.resolve(type_)
    return f"{names.give(type)}({checked}) is {names.give(found)}" if isinstance(found, type) else None


def _has_length(names: Names, checked: str, length: ast.expr) -> str | None:
    """Returns a condition for the types whose length is not computed by user code."""
    number, type_ = _read(length), names.give(type)
    if type(number) is not int:
        return None
    is_plain = " or ".join(f"{type_}({checked}) is {names.give(each)}" for each in (tuple, list, dict))
    return f"({is_plain}) and {names.give(len)}({checked}) == {number}"


def _is_empty(names: Names, checked: str) -> str | None:
    return _has_length(names, checked, ast.Constant(0))


def _is_dtype(names: Names, checked: str, value: ast.expr) -> str | None:
    import torch

    found = names.resolve(value)
    return f"{checked} is {names.give(found)}" if isinstance(found, torch.dtype) else None


def _is_tensor(
    names: Names, checked: str, shape: ast.expr, device: ast.expr, dtype: ast.expr, requires_grad: ast.expr
) -> str | None:
    """Returns a condition for tensors of torch's own types: others may say of themselves what they like."""
    import torch

    sizes, place, kind, wants = _read(shape), _read(device), names.resolve(dtype), _read(requires_grad)
    is_known = type(sizes) is tuple and all(type(size) is int for size in sizes) and isinstance(kind, torch.dtype)
    if not is_known or type(place) is not str or type(wants) is not bool or str(torch.device(place)) != place:
        return None
    types = (torch.nn.Parameter, torch.Tensor) if wants else (torch.Tensor, torch.nn.Parameter)
    is_plain = " or ".join(f"{names.give(type)}({checked}) is {names.give(each)}" for each in types)
    return (
        f"({is_plain}) and {checked}.shape == {sizes!r} and {checked}.dtype is {names.give(kind)} "
        f"and {checked}.device == {names.give(torch.device(place))} and {checked}.requires_grad is {wants}"
    )


def _read(expression: ast.expr) -> Any:
    """Returns the value of a literal; of no literal, the expression itself, whose type no value has."""
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return expression


def _is_device(value: Any) -> bool:
    import torch

    return isinstance(value, torch.device)


_INDENT = 2
"""Of Thunder's statements."""


@dataclass(frozen=True, slots=True)
class NewPrologue:
    """A prologue that was written anew.

    Attributes:
        text: of a function that makes it.
        code: of it.
        closure: what its conditions refer to.
    """

    text: str
    code: CodeType
    closure: tuple[CellType, ...] | None

    def bind(self, prologue: FunctionType) -> FunctionType:
        """Returns the function, with the globals of the prologue in whose place it is."""
        # They have the module, and Thunder takes care to keep them out of cycles.
        function = FunctionType(self.code, prologue.__globals__, prologue.__name__, None, self.closure)
        show_lines(function, self.code.co_filename, lambda: self.text)
        return function


def rewrite(prologue: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that does what a prologue of Thunder's does, in a fraction of the time.

    Raises:
        Declined: if it is none, or not the one that its source says.
    """
    function = check_prologue(prologue)
    source = "".join(linecache.getlines(function.__code__.co_filename))
    return write(source, function.__code__, function.__globals__).bind(function)


def check_prologue(prologue: Callable[..., Any]) -> FunctionType:
    """Returns a prologue, which has nothing but its code and its globals.

    Raises:
        Declined: if it has.
    """
    if not isinstance(prologue, FunctionType) or prologue.__closure__ or prologue.__defaults__:
        raise Declined("it is no function that Thunder compiled of a trace", Scope.PROLOGUE)
    return prologue


def name_file(prologue: str) -> str:
    """Returns the name of the file that a new prologue seems to come from, from that of Thunder's."""
    return f"fusioncache.{prologue}"


def write(source: str, code: CodeType, known: Mapping[str, Any]) -> NewPrologue:
    """Writes a prologue anew.

    Args:
        source: of the prologue.
        code: of the prologue.
        known: its globals.

    Raises:
        Declined: if the source is not that of the code, or not as Thunder prints it.
    """
    function, lines = _find_function(source, code), source.splitlines()
    if lines != source.removesuffix("\n").split("\n"):
        raise Declined("its lines end otherwise than Thunder's", Scope.PROLOGUE)
    bound = _find_bound(function)
    names = Names({name: value for name, value in known.items() if name not in bound}, _choose_prefix(source))
    # Indented by less than what is in it, so that its lines stay as they are.
    body = [f" {lines[function.lineno - 1]}"]
    for statement in function.body:
        body += _rewrite(statement, lines[statement.lineno - 1 : statement.end_lineno], names)
    text = "\n".join([f"def make({', '.join(names.values)}):", *body, f" return {function.name}", ""])
    namespace: dict[str, Any] = {}
    exec(compile(text, name_file(code.co_filename), "exec", dont_inherit=True), namespace)
    made = namespace["make"](*names.values.values())
    return NewPrologue(text, made.__code__, made.__closure__)


def _find_function(source: str, code: CodeType) -> ast.FunctionDef:
    # Thunder compiles with what its own file imports from the future, which the code says.
    flags = sum(getattr(__future__, name).compiler_flag & code.co_flags for name in __future__.all_feature_names)
    try:
        tree = ast.parse(source)
        # Thunder compiles with the options of this Python, and a program that is stored is compiled without any.
        compiled = (compile(source, code.co_filename, "exec", flags, True, level) for level in (-1, 0))
        is_source = any(code in each.co_consts for each in compiled)
    except SyntaxError as error:
        raise Declined(f"its source is none: {error}", Scope.PROLOGUE) from error
    if not is_source:
        raise Declined("its source is that of another function", Scope.PROLOGUE)
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == code.co_name)
    if function.decorator_list or function.body[0].lineno == function.lineno:
        raise Declined("it is not written as Thunder writes", Scope.PROLOGUE)
    if any(statement.col_offset != _INDENT for statement in function.body):
        raise Declined("it is not indented as Thunder indents", Scope.PROLOGUE)
    return function


def _choose_prefix(source: str) -> str:
    prefix = "known_"
    while prefix in source:
        prefix = f"_{prefix}"
    return prefix


def _find_bound(function: ast.FunctionDef) -> set[str]:
    """Returns the names that are bound somewhere in a function, parameters included."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    parameters = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    return parameters | {node.id for node in names if not isinstance(node.ctx, ast.Load)}


def _rewrite(statement: ast.stmt, lines: Sequence[str], names: Names) -> Sequence[str]:
    """Returns the lines that stand for a statement that is written in these lines."""
    condition = _write_condition(statement, names) if len(lines) == 1 else None
    return lines if condition is None else [f"  if not ({condition}):", f"  {lines[0]}"]


def _write_condition(statement: ast.stmt, names: Names) -> str | None:
    """Returns when a statement does nothing: when the check that it calls passes. None if that is not known."""
    match statement:
        case ast.Expr(ast.Call(ast.Name(name), [ast.Name(checked), *others], [])):
            function = names.known.get(name)
            write = find_conditions().get(function) if isinstance(function, FunctionType) else None
            try:
                return write(names, checked, *others) if write else None
            except TypeError:  # it is called with other arguments than Thunder gives it
                return None
    return None


CALLS = 3
"""Which call of a prologue is the first of the faster one."""

_TIMER = "jit.<locals>.prologue_execution_timer"
"""Thunder's function that makes of a prologue what is timed."""


type Rewrite = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns a faster function in place of a prologue, or raises ``Declined``."""


def quicken(prologue: Callable[..., Any], rewrite: Rewrite = rewrite) -> Callable[..., Any]:
    """Returns a function that does what a prologue of Thunder's does, and is faster from a few calls on."""
    current, calls = prologue, 0

    @wraps(prologue)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal current, calls
        if calls < CALLS:
            calls += 1
            if calls >= CALLS:
                current = _try(rewrite, prologue)
        return current(*args, **kwargs)

    return run


def _try(rewrite: Rewrite, prologue: Callable[..., Any]) -> Callable[..., Any]:
    try:
        # A tree of its source is thousands of objects, for which the collector would look through all of the process.
        with without_collector():
            return rewrite(prologue)
    except Exception as error:  # whatever it is, Thunder's own does the same
        if is_declined(error, Scope.PROLOGUE):
            logger.info("a prologue stays as Thunder made it: %s", error)
        else:
            logger.info("a prologue stays as Thunder made it", exc_info=True)
    return prologue


def quicken_last() -> None:
    """Quickens the prologue of what Thunder derives at this moment, in the function with which it takes the time of it.

    Thunder has compiled it before it asks transforms for what they make of the computation.
    """
    from fusioncache.thunder_adapter.api import _compile_data

    _, stats = _compile_data.get()
    timed = getattr(stats, "last_prologue", None)
    if not isinstance(timed, FunctionType) or timed.__qualname__.rpartition(".<locals>.")[0] != _TIMER:
        return
    cells = dict(zip(timed.__code__.co_freevars, timed.__closure__ or (), strict=True))
    cell = cells.get("fn")
    if cell is not None and not hasattr(cell.cell_contents, "__wrapped__"):
        cell.cell_contents = quicken(cell.cell_contents)
