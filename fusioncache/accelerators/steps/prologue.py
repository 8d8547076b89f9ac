"""Rewrites a prologue: the same statements in the same order, but checks are called only if a quick condition fails.

    i1: "int 256" = module.n_embd             i1: "int 256" = module.n_embd
    check_number_type_and_value(i1, 256)      if not (type(i1) is int and i1 == 256):
                                                check_number_type_and_value(i1, 256)

If a condition holds, the check would have passed without any other effect. If it does not hold, the check is called
after all, and decides. So a condition may be narrow in order to be quick, and errors are those of the original check.

Parameters, buffers and submodules are looked up directly in the dictionaries in which Thunder's module looks first.
Attributes that Thunder's module does not have are read from the module that was compiled.

Parameters and buffers are checked at the place of the last of these checks. As long as all are unchanged since they
passed, one guard replaces their checks: see ``KnownTensors``. All else stays the same, above all attributes: to read
one may run user code.

Rewriting one takes as long as some hundred calls of it save: a model that is called once or twice keeps Thunder's.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch

from fusioncache.ir.errors import Declined, Scope, is_declined
from fusioncache.process.collector import without_collector
from fusioncache.process.sources import show_lines
from fusioncache.process.tensor_guards import Guard, guard_tensors
from fusioncache.process.warning import logger
from fusioncache.thunder_adapter.api import ThunderModule, _compile_data, pythonex
from fusioncache.thunder_adapter.installation import find_known


@dataclass(frozen=True, slots=True)
class Names:
    """The names that conditions may refer to.

    Attributes:
        known: the names that are bound only in the globals of the prologue, with their values.
        prefix: the beginning of new names, and of no others.
        values: the values of the new names.
    """

    known: Mapping[str, Any]
    prefix: str
    values: dict[str, Any] = field(default_factory=dict)

    def give(self, value: Any) -> str:
        """Returns a name for a value: the same for the same object, and for equal devices."""
        for name, other in self.values.items():
            if other is value or (type(other) is type(value) and isinstance(value, torch.device) and other == value):
                return name
        self.values[name := f"{self.prefix}{len(self.values)}"] = value
        return name

    def resolve(self, expression: ast.expr) -> Any:
        """Returns the value of a name, or of an attribute of a named module; None for any other expression."""
        if isinstance(expression, ast.Name):
            return self.known.get(expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self.resolve(expression.value)
            return vars(owner).get(expression.attr) if isinstance(owner, ModuleType) else None
        return None


Condition = Callable[..., str | None]
"""Returns a condition under which a check passes for sure; None for a check that must be called.

It takes ``Names``, the name of the checked value, and the other arguments of the check.
"""


def find_conditions() -> Mapping[Callable[..., Any], Condition]:
    """Returns the functions that write conditions for Thunder's checks, by the function that checks."""
    return {
        pythonex._check_number_type_and_value_impl: _is_literal,
        pythonex._check_string_value_impl: _is_literal,
        pythonex._check_none_impl: lambda names, checked: f"{checked} is None",
        pythonex._check_type_impl: _has_type,
        pythonex._check_len_impl: _has_length,
        pythonex._check_empty_impl: lambda names, checked: _has_length(names, checked, ast.Constant(0)),
        pythonex._check_literal_like_impl: _is_dtype,
        pythonex._check_tensor_shape_and_metadata_impl: _is_tensor,
    }


def _is_literal(names: Names, checked: str, value: ast.expr) -> str | None:
    literal = _read(value)
    if type(literal) is bool:
        return f"{checked} is {literal}"
    is_written = type(literal) in (int, str) or (type(literal) is float and math.isfinite(literal))
    return _is_exactly(names, checked, literal) if is_written else None


def _is_exactly(names: Names, checked: str, value: Any) -> str:
    """Returns the condition that something has exactly a value's type and equals it, without a user's ``__eq__``."""
    return f"{names.give(type)}({checked}) is {names.give(type(value))} and {checked} == {value!r}"


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


def _is_dtype(names: Names, checked: str, value: ast.expr) -> str | None:
    found = names.resolve(value)
    return f"{checked} is {names.give(found)}" if isinstance(found, torch.dtype) else None


def _is_tensor(
    names: Names, checked: str, shape: ast.expr, device: ast.expr, dtype: ast.expr, requires_grad: ast.expr
) -> str | None:
    """Returns a condition for tensors of torch's own types: subclasses may override the attributes."""
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
    """Returns the value of a literal; for any other expression the expression itself, whose type no literal has."""
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return expression


MOST_GUARDS = 8
"""How many guards one prologue makes. They are of no use if, for example, strides differ from call to call."""


class KnownTensors:
    """The guard of parameters and buffers that passed one prologue.

        if not known.check(w, b):
          expected = known.expect(w, b)
          if not (w.shape == (3, 2) and ...):
            check_tensor_metadata(w, (3, 2), ...)
          ...
          known.learn(expected, w, b)

    Another thread may change a tensor between its check and the creation of its guard. So a guard that was made after
    the checks of one call is trusted only after it held both before and after the checks of another call.

    Attributes:
        check: returns whether tensors are unchanged since they passed.
    """

    __slots__ = ("_guards", "_next", "check")

    def __init__(self) -> None:
        self.check: Guard = _know_nothing
        self._next: Guard = _know_nothing
        self._guards = 0

    def expect(self, *tensors: Any) -> Guard | None:
        """Returns, before the checks, the guard of the last call that passed; None if it does not hold now."""
        guard = self._next
        return guard if guard(*tensors) else None

    def learn(self, expected: Guard | None, *tensors: Any) -> None:
        """Trusts the expected guard if it still holds for tensors that passed, or else makes a new one.

        Args:
            expected: the result of ``expect`` before the checks.
            tensors: the same tensors.
        """
        if expected is not None and expected(*tensors):
            self.check = expected
        elif self._guards < MOST_GUARDS:
            self._guards += 1
            self._next = guard_tensors(tensors) or _know_nothing


def _know_nothing(*_: Any) -> bool:
    return False


METHODS: Mapping[str, str] = MappingProxyType(
    {
        "get_parameter": "_overrides_parameters",
        "get_buffer": "_overrides_buffers",
        "get_submodule": "_module_cache",
    }
)
"""The methods of Thunder's module, each with the attribute that contains its dictionary."""

GIVE_TENSORS = frozenset({"get_parameter", "get_buffer"})
"""Those of these methods that return a tensor."""

_GETATTR = "__getattr__"


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def find_lookups(module: Any, attributes: frozenset[str]) -> tuple[Any, ...]:
    """Returns functions that replace lookups of Thunder's module, and the module that has its attributes.

    Args:
        module: Thunder's, or another.
        attributes: the names that are read from it.

    Returns:
        For each method a function of a name and a default. It always returns the default if the method is not
        Thunder's original. Then the default, which means that nothing was found, the module that has the attributes,
        and the names of attributes that must be read from Thunder's module nevertheless.
    """
    known, own = _find_own()
    if type(module) is not known:
        return *(_NOTHING.get for _ in METHODS), _NOTHING, module, attributes
    # Not split into functions, as each prologue calls it in each step.
    names, methods, found = vars(module), vars(known), []
    for method, attribute in METHODS.items():
        items = names.get(attribute)
        is_own = method not in names and methods.get(method) is own.get(method)
        found.append(items.get if is_own and type(items) is dict else _NOTHING.get)
    is_own = _GETATTR in own and methods.get(_GETATTR) is own[_GETATTR]
    model = names["_modules"].get("_model")
    if not is_own or model is None or any(hasattr(known, name) for name in attributes):
        return *found, module._null, module, attributes
    return *found, module._null, model, names


@cache
def _find_own() -> tuple[Any, Mapping[str, Any]]:
    """Returns the class of Thunder's modules, and those of its methods whose sources are known."""
    return ThunderModule, {name.rpartition(".")[2]: each for name, each in find_known("module lookups").items()}


_INDENT = 2
"""The number of spaces before Thunder's statements."""


@dataclass(frozen=True, slots=True)
class NewPrologue:
    """A rewritten prologue.

    Attributes:
        text: of a function that makes it.
        code: its code object.
        closure: cells with the values that its conditions refer to.
    """

    text: str
    code: CodeType
    closure: tuple[CellType, ...] | None

    def bind(self, prologue: FunctionType) -> FunctionType:
        """Returns the function, with the globals of the prologue that it replaces."""
        # Several prologues may share the code, and each has guards of its own tensors.
        closure = self.closure and tuple(map(_renew, self.closure))
        # The globals contain the module, and Thunder keeps them out of reference cycles.
        function = FunctionType(self.code, prologue.__globals__, prologue.__name__, None, closure)
        show_lines(function, self.code.co_filename, lambda: self.text)
        return function


def _renew(cell: CellType) -> CellType:
    return CellType(KnownTensors()) if isinstance(cell.cell_contents, KnownTensors) else cell


def rewrite(prologue: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that replaces one of Thunder's prologues, and takes a fraction of the time.

    Raises:
        Declined: if the function is no prologue, or its source is not that of its code.
    """
    function = check_prologue(prologue)
    source = "".join(linecache.getlines(function.__code__.co_filename))
    return write(source, function.__code__, function.__globals__).bind(function)


def check_prologue(prologue: Callable[..., Any]) -> FunctionType:
    """Returns a prologue if it is a function without a closure or defaults.

    Raises:
        Declined: if it is not.
    """
    if not isinstance(prologue, FunctionType) or prologue.__closure__ or prologue.__defaults__:
        raise Declined("it is no function that Thunder compiled of a trace", Scope.PROLOGUE)
    return prologue


def name_file(prologue: str) -> str:
    """Returns the file name of a new prologue's code, given that of Thunder's prologue."""
    return f"fusioncache.{prologue}"


def write(source: str, code: CodeType, known: Mapping[str, Any]) -> NewPrologue:
    """Rewrites a prologue.

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
    assigned = _count_assignments(function)
    names = Names({name: value for name, value in known.items() if not assigned[name]}, _choose_prefix(source))
    tensors = _find_tensors(function, names, assigned)
    writer = _Writer(names, lines, assigned, _find_attributes(function), tensors)
    # Indented by less than its statements, so that their lines stay the same.
    body = [f" {writer.lines[function.lineno - 1]}"]
    for statement in function.body:
        body += writer.rewrite(statement)
    text = "\n".join([f"def make({', '.join(names.values)}):", *body, f" return {function.name}", ""])
    namespace: dict[str, Any] = {}
    exec(compile(text, name_file(code.co_filename), "exec", dont_inherit=True), namespace)
    made = namespace["make"](*names.values.values())
    return NewPrologue(text, made.__code__, made.__closure__)


def _find_function(source: str, code: CodeType) -> ast.FunctionDef:
    # Thunder compiles with the ``__future__`` imports of its file, which are flags of the code object.
    flags = sum(getattr(__future__, name).compiler_flag & code.co_flags for name in __future__.all_feature_names)
    try:
        tree = ast.parse(source)
        # Thunder compiles with this Python's optimization level, but stored programs are compiled with level 0.
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


def _count_assignments(function: ast.FunctionDef) -> Counter[str]:
    """Returns how often each name is bound, parameters included."""
    found = Counter(each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg))
    for statement in function.body:
        match statement:
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                found[name] += 1
            case ast.Expr(ast.Call()):
                pass
            case _:
                bound = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
                found.update(node.id for node in bound if not isinstance(node.ctx, ast.Load))
    return found


def _read_assignment(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Returns the one name that a statement binds, and the expression bound to it; None for any other statement."""
    match statement:
        case ast.Assign([ast.Name(target)], value) | ast.AnnAssign(ast.Name(target), _, ast.expr() as value):
            return target, value
    return None


def _find_tensors(function: ast.FunctionDef, names: Names, assigned: Counter[str]) -> dict[ast.stmt, str]:
    """Returns the checks of parameters and buffers that one guard replaces, in order, each with the checked name.

    Inputs are not among them: they differ from call to call, and a prologue that does not fit ends at the first. For a
    single parameter or buffer a guard is not worth it.
    """
    check_tensor = pythonex._check_tensor_shape_and_metadata_impl
    taken: set[str] = set()
    found: dict[str, ast.stmt] = {}
    for statement in function.body:
        match _read_assignment(statement):
            case target, ast.Call(ast.Attribute(_, method)) if method in GIVE_TENSORS and assigned[target] == 1:
                taken.add(target)
        match statement:
            case ast.Expr(ast.Call(ast.Name(check), [ast.Name(name), *_], [])) if name in taken:
                if names.known.get(check) is check_tensor and statement.lineno == statement.end_lineno:
                    found.setdefault(name, statement)
    return {statement: name for name, statement in found.items()} if len(found) > 1 else {}


def _find_attributes(function: ast.FunctionDef) -> Mapping[str, frozenset[str]]:
    """Returns the attributes that are read from each name by a separate statement."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for statement in function.body:
        match _read_assignment(statement):
            case _, ast.Attribute(ast.Name(owner), name):
                found[owner].add(name)
    return {owner: frozenset(names) for owner, names in found.items()}


@dataclass(slots=True, eq=False)
class _Writer:
    """Rewrites the statements of one function, in their order.

    Attributes:
        lines: of the source.
    """

    _names: Names
    lines: Sequence[str]
    _assigned: Counter[str]
    _attributes: Mapping[str, frozenset[str]]
    _tensors: dict[ast.stmt, str]
    _conditions: Mapping[Callable[..., Any], Condition] = field(default_factory=find_conditions)
    _opened: set[str] = field(default_factory=set)

    def rewrite(self, statement: ast.stmt) -> Iterator[str]:
        """Yields the lines that replace a statement."""
        if statement not in self._tensors:
            yield from self._write(statement)
        elif statement is next(reversed(self._tensors)):  # the others are moved to the last one
            yield from self._write_tensors()

    def _write(self, statement: ast.stmt) -> Iterator[str]:
        lines = self.lines[statement.lineno - 1 : statement.end_lineno]
        instead = self._rewrite_line(statement) if len(lines) == 1 else None
        if instead is None:
            yield from lines
        else:
            yield from (f"  {line}" for line in instead)
            yield f"  {lines[0]}"

    def _write_tensors(self) -> Iterator[str]:
        """Yields all checks of parameters and buffers, at the place of the last one."""
        checked = ", ".join(self._tensors.values())
        known, expected = self._names.give(KnownTensors()), f"{self._names.prefix}expected"
        yield f"  if not {known}.check({checked}):"
        yield f"    {expected} = {known}.expect({checked})"
        for statement in self._tensors:
            yield from (f"  {line}" for line in self._write(statement))
        yield f"    {known}.learn({expected}, {checked})"

    def _rewrite_line(self, statement: ast.stmt) -> list[str] | None:
        """Returns the lines before a statement that make it conditional; None if it always runs."""
        match statement:
            case ast.Expr(ast.Call(ast.Name(name), [ast.Name(checked), *others], [])):
                condition = self._write_condition(name, checked, others)
                return condition and [f"if not ({condition}):"]
        match _read_assignment(statement):
            case target, ast.Call(ast.Attribute(ast.Name(owner), method), [ast.Constant(str(key))], []):
                return self._look_up(target, owner, method, key) if method in METHODS and owner != target else None
            case target, ast.Attribute(ast.Name(owner), name) if owner in self._opened:
                return self._read_attribute(target, owner, name)
        return None

    def _read_attribute(self, target: str, owner: str, name: str) -> list[str]:
        prefix = f"{self._names.prefix}{owner}_"
        read = f"{prefix}none if {name!r} in {prefix}names else {prefix}model.{name}"
        return [f"{target} = {read}", f"if {target} is {prefix}none:"]

    def _write_condition(self, name: str, checked: str, others: Sequence[ast.expr]) -> Any:
        function = self._names.known.get(name)
        write: Condition | None = self._conditions.get(function) if isinstance(function, FunctionType) else None
        try:
            return write(self._names, checked, *others) if write else None
        except TypeError:  # the check has other arguments than Thunder passes
            return None

    def _look_up(self, target: str, owner: str, method: str, key: str) -> list[str] | None:
        if self._assigned[owner] != 1:
            return None
        prefix, lines = f"{self._names.prefix}{owner}_", []
        if owner not in self._opened:
            self._opened.add(owner)
            wanted = ", ".join(f"{prefix}{name}" for name in (*METHODS, "none", "model", "names"))
            attributes = self._names.give(self._attributes.get(owner, frozenset()))
            lines.append(f"{wanted} = {self._names.give(find_lookups)}({owner}, {attributes})")
        found = f"{target} = {prefix}{method}({key!r}, {prefix}none)"
        return [*lines, found, f"if {target} is {prefix}none:"]


CALLS = 3
"""The number of the first call that uses the faster prologue."""

_TIMER = "jit.<locals>.prologue_execution_timer"
"""The name of Thunder's function that wraps a prologue to time it."""


type Rewrite = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns a faster function in place of a prologue, or raises ``Declined``."""


def quicken(prologue: Callable[..., Any], rewrite: Rewrite = rewrite) -> Callable[..., Any]:
    """Returns a function that replaces one of Thunder's prologues, and is faster after a few calls."""
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
        # The syntax tree has thousands of objects, for which the collector would scan the whole process.
        with without_collector():
            return rewrite(prologue)
    except Exception as error:  # after any error, Thunder's prologue is used
        if is_declined(error, Scope.PROLOGUE):
            logger.info("a prologue stays as Thunder made it: %s", error)
        else:
            logger.info("a prologue stays as Thunder made it", exc_info=True)
    return prologue


def quicken_last() -> None:
    """Quickens the prologue of the entry that Thunder is compiling, inside the function that times the prologue.

    Thunder compiles the prologue before it runs transforms on the computation.
    """
    _, stats = _compile_data.get()
    timed = getattr(stats, "last_prologue", None)
    if not isinstance(timed, FunctionType) or timed.__qualname__.rpartition(".<locals>.")[0] != _TIMER:
        return
    cells = dict(zip(timed.__code__.co_freevars, timed.__closure__ or (), strict=True))
    cell = cells.get("fn")
    if cell is not None and not hasattr(cell.cell_contents, "__wrapped__"):
        cell.cell_contents = quicken(cell.cell_contents)
