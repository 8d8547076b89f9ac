"""Thunder's checks as conditions: when each of them passes for sure, written where it is called.

A prologue calls a Python function for each thing that it checks, and most of these compare one number. A condition here
says less than the check: where it holds, the check would have passed without any other effect. Where it does not hold,
the check is called after all, and decides. So a condition may be as narrow as it is quick, and what a check raises is
its own.

Thunder's module has a dictionary of parameters, of buffers and of submodules, looks there first, and into the module
that was compiled if there is nothing. Each of its methods is one call and four lookups for one item. An attribute that
it does not have itself it takes from the module that was compiled, which two calls of its ``__getattr__`` find.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from fusioncache.process.tensor_guards import Guard, guard_tensors
from fusioncache.thunder_adapter.installation import find_known


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
        find_tensor_check(): _is_tensor,
    }


def find_tensor_check() -> Callable[..., Any]:
    """Returns Thunder's check of a tensor."""
    from fusioncache.thunder_adapter.api import pythonex

    check: Callable[..., Any] = pythonex._check_tensor_shape_and_metadata_impl
    return check


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


MOST_GUARDS = 8
"""How many guards one prologue makes. Where strides differ from call to call, say, they are of no use."""


class KnownTensors:
    """What one prologue knows of parameters and buffers that passed it.

        if not known.check(w, b):
          expected = known.expect(w, b)
          if not (w.shape == (3, 2) and ...):
            check_tensor_metadata(w, (3, 2), ...)
          ...
          known.learn(expected, w, b)

    Another thread may change a tensor between its check and what is learned of it. So a guard that was made behind the
    checks of one call is trusted once it held both before and behind those of another.

    Attributes:
        check: returns whether tensors are as they were when they passed.
    """

    __slots__ = ("_guards", "_next", "check")

    def __init__(self) -> None:
        self.check: Guard = _know_nothing
        self._next: Guard = _know_nothing
        self._guards = 0

    def expect(self, *tensors: Any) -> Guard | None:
        """Returns, before the checks, the guard of the last call that passed; None if tensors are otherwise now."""
        guard = self._next
        return guard if guard(*tensors) else None

    def learn(self, expected: Guard | None, *tensors: Any) -> None:
        """Takes note of tensors that passed.

        Args:
            expected: what ``expect`` returned before the checks.
            tensors: the same.
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
"""The methods of Thunder's module, each with the attribute that has its dictionary."""

GIVE_TENSORS = frozenset({"get_parameter", "get_buffer"})
"""Those of these methods that return a tensor."""

_GETATTR = "__getattr__"


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def find_lookups(module: Any, attributes: frozenset[str]) -> tuple[Any, ...]:
    """Returns what looks for items and attributes in the place of Thunder's module.

    Args:
        module: Thunder's, or another.
        attributes: that are read of it.

    Returns:
        For each method a function of a name and of what stands for nothing. It finds nothing where the method is not
        Thunder's own. Then what stands for nothing, the module that has the attributes, and the names of those that are
        to be read of Thunder's all the same.
    """
    known, own = _find_own()
    if type(module) is not known:
        return *(_NOTHING.get for _ in METHODS), _NOTHING, module, attributes
    # One function, as each prologue of each step calls it.
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
    """Returns the class of Thunder's modules, and those of its methods that are as they are known to be."""
    from fusioncache.thunder_adapter.api import ThunderModule

    return ThunderModule, {name.rpartition(".")[2]: each for name, each in find_known("module lookups").items()}
