"""Whether two modules are alike: whether code that is given the one or the other can tell them apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.hooks import has_type

_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
_DIFFERING = (int, float, str)


@dataclass(slots=True)
class Likeness:
    """How two modules correspond.

    Attributes:
        partners: the object of the second that corresponds to one of the first, by the address of the latter.
        differing: the plain attributes that differ, as the address of the module of the first and the attribute's name.
    """

    partners: dict[int, Any] = field(default_factory=dict)
    differing: set[tuple[int, str]] = field(default_factory=set)
    _taken: set[int] = field(default_factory=set)

    def pair(self, one: Any, other: Any) -> bool:
        """Notes that two objects correspond; returns whether that was known.

        Raises:
            Declined: if one of them corresponds to something else.
        """
        if id(one) in self.partners:
            if self.partners[id(one)] is not other:
                raise Declined("one has an object in two places where the other has two", Scope.BLOCK)
            return True
        if one is other or id(other) in self._taken:
            raise Declined("they share a parameter, a module or a container", Scope.BLOCK)
        self.partners[id(one)] = other
        self._taken.add(id(other))
        return False


def compare(one: Any, other: Any) -> Likeness:
    """Returns how two modules correspond that differ in nothing but parameters' values and plain attributes.

    Raises:
        Declined: if they differ otherwise, or in something that is not understood.
    """
    likeness = Likeness()
    _compare_modules(one, other, likeness)
    return likeness


def _compare_modules(one: Any, other: Any, likeness: Likeness) -> None:
    if type(one) is not type(other):
        raise Declined(f"a {type(one).__name__} is no {type(other).__name__}", Scope.BLOCK)
    if any(vars(base).get("__slots__") for base in type(one).__mro__):
        raise Declined(f"{type(one).__name__} has slots", Scope.BLOCK)
    if likeness.pair(one, other):
        return
    likeness.pair(vars(one), vars(other))
    _compare_keys(vars(one), vars(other))
    for name, value in vars(one).items():
        theirs = vars(other)[name]
        if type(value) is type(theirs) and has_type(value, _DIFFERING) and not _equal(value, theirs):
            likeness.differing.add((id(one), name))
        else:
            _compare_values(value, theirs, likeness, name)


def _compare_values(one: Any, other: Any, likeness: Likeness, name: str) -> None:
    import torch

    if isinstance(one, torch.nn.Module):
        _compare_modules(one, other, likeness)
    elif isinstance(one, torch.Tensor):
        _compare_tensors(one, other, likeness)
    elif type(one) is not type(other):
        raise Declined(f"{name} is of another type", Scope.BLOCK)
    elif has_type(one, (*_PLAIN, torch.dtype, torch.device, torch.Size)):
        if not _equal(one, other):
            raise Declined(f"{name} differs", Scope.BLOCK)
    elif has_type(one, (dict, OrderedDict)):
        if not likeness.pair(one, other):
            _compare_keys(one, other)
            _compare_all(zip(one.values(), other.values(), strict=True), likeness, name)
    elif has_type(one, (list, tuple)):
        _compare_sequences(one, other, likeness, name)
    elif has_type(one, (set, frozenset)) and not one and not other:
        pass
    elif one is not other or isinstance(one, MethodType):  # whose object is one of them or neither
        raise Declined(f"{name} is a {type(one).__name__} of its own", Scope.BLOCK)


def _compare_sequences(one: Any, other: Any, likeness: Likeness, name: str) -> None:
    if len(one) != len(other):
        raise Declined(f"{name} has another length", Scope.BLOCK)
    if type(one) is tuple or not likeness.pair(one, other):
        _compare_all(zip(one, other, strict=True), likeness, name)


def _compare_all(pairs: Iterable[tuple[Any, Any]], likeness: Likeness, name: str) -> None:
    for one, other in pairs:
        _compare_values(one, other, likeness, name)


def _compare_keys(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    keys = [*one, *other]
    if list(one) != list(other) or any(type(key) is not str for key in keys):
        raise Declined(
            "they have other attributes, parameters, buffers, modules or hooks, or in another order", Scope.BLOCK
        )


def _compare_tensors(one: Any, other: Any, likeness: Likeness) -> None:
    import torch

    if type(one) is not type(other) or type(one) not in (torch.nn.Parameter, torch.Tensor):
        raise Declined(f"a {type(one).__name__} is no {type(other).__name__}, or of no plain type", Scope.BLOCK)
    if _describe(one) != _describe(other):
        raise Declined("a parameter or a buffer has another shape, type or device", Scope.BLOCK)
    if vars(one) or vars(other) or one.grad is not None or other.grad is not None:
        raise Declined("a parameter or a buffer has attributes of its own, or a gradient", Scope.BLOCK)
    likeness.pair(one, other)


def _describe(tensor: Any) -> tuple[Any, ...]:
    shape = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return *shape, tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, tensor.is_leaf


def _equal(one: Any, other: Any) -> bool:
    return one is other or repr(one) == repr(other)  # which tells 0.0 from -0.0, and says that nan is nan
