"""Thunder's checks as conditions: when each of them passes for sure, written where it is called.

A prologue calls a Python function for each thing that it checks, and most of these compare one number. A condition here
says less than the check: where it holds, the check would have passed, and nobody could have noticed that it was not
called. Where it does not hold, the check is called after all, and decides. So a condition may be as narrow as it is
quick, and what a check raises is its own.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


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

    def find(self, expression: ast.expr) -> Any:
        """Returns the value of a name, or of an attribute of a module that has a name; None for anything else."""
        if isinstance(expression, ast.Name):
            return self.known.get(expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self.find(expression.value)
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
    """Returns the condition that something has a value's own type and is equal to it: nobody's ``__eq__`` is called."""
    return f"{names.give(type)}({checked}) is {names.give(type(value))} and {checked} == {value!r}"


def _is_none(names: Names, checked: str) -> str:
    return f"{checked} is None"


def _has_type(names: Names, checked: str, type_: ast.expr) -> str | None:
    found = names.find(type_)
    return f"{names.give(type)}({checked}) is {names.give(found)}" if isinstance(found, type) else None


def _has_length(names: Names, checked: str, length: ast.expr) -> str | None:
    """Returns a condition for the types whose length is not computed by what somebody wrote."""
    number, type_ = _read(length), names.give(type)
    if type(number) is not int:
        return None
    is_plain = " or ".join(f"{type_}({checked}) is {names.give(each)}" for each in (tuple, list, dict))
    return f"({is_plain}) and {names.give(len)}({checked}) == {number}"


def _is_empty(names: Names, checked: str) -> str | None:
    return _has_length(names, checked, ast.Constant(0))


def _is_dtype(names: Names, checked: str, value: ast.expr) -> str | None:
    import torch

    found = names.find(value)
    return f"{checked} is {names.give(found)}" if isinstance(found, torch.dtype) else None


def _is_tensor(
    names: Names, checked: str, shape: ast.expr, device: ast.expr, dtype: ast.expr, requires_grad: ast.expr
) -> str | None:
    """Returns a condition for tensors of torch's own types: others may say of themselves what they like."""
    import torch

    sizes, place, kind, wants = _read(shape), _read(device), names.find(dtype), _read(requires_grad)
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
