"""Where a value comes from, as Thunder records it: looked up in another block, and written for another block."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from fusioncache.ir.errors import Declined, Scope


def name_of(inst: Any) -> str:
    """Returns the name of what made a value: one of Python's instructions, or one of Thunder's own."""
    return getattr(inst, "opname", None) or inst.value


def find_value(origin: Any, root: Any, module: Any) -> Any:
    """Returns the value that a block has where the origin of a value says that it was found.

    Args:
        origin: Thunder's record of where the value was found in a block.
        root: its record of where that block was found.
        module: the block to look in.

    Raises:
        Declined: if it was found neither as an attribute of a module, nor as an item of a plain container of one.
    """
    if origin is root:
        return module
    inst = name_of(origin.inst)
    if inst not in ("LOAD_ATTR", "BINARY_SUBSCR") or name_of(origin.inputs[1].inst) != "CONSTANT":
        raise Declined(f"a value comes from {inst}", Scope.BLOCK)
    owner, key = find_value(origin.inputs[0], root, module), origin.inputs[1].value
    if inst == "LOAD_ATTR":
        return _find_attribute(owner, key)
    if type(owner) not in (dict, OrderedDict, list, tuple):
        raise Declined(f"a value is an item of a {type(owner).__name__}", Scope.BLOCK)
    return owner[key]


def _find_attribute(owner: Any, name: str) -> Any:
    import torch

    if not isinstance(owner, torch.nn.Module):
        raise Declined(f"a value is an attribute of a {type(owner).__name__}", Scope.BLOCK)
    if name == "__dict__":
        return vars(owner)
    if name in vars(owner):
        return vars(owner)[name]
    of_class = next((vars(base)[name] for base in type(owner).__mro__ if name in vars(base)), None)
    if type(of_class) not in (bool, int, float, str):
        raise Declined(f"{name} is no plain attribute", Scope.BLOCK)
    return of_class


def find_owner(origin: Any, root: Any, module: Any) -> tuple[int, str] | None:
    """Returns the module, by address, and the name of which a value is an attribute; None if it is no such."""
    if name_of(origin.inst) != "LOAD_ATTR" or origin is root:
        return None
    return id(find_value(origin.inputs[0], root, module)), origin.inputs[1].value


class Copies:
    """Records of origins for another block: the same, but for what comes from the block or from its arguments."""

    def __init__(self, others: Mapping[int, Any]) -> None:
        """Takes the record for the other block in place of one of the first block, by the address of the latter."""
        self._done = dict(others)
        self._roots = frozenset(others)
        self._kept: list[Any] = []

    def copy(self, origin: Any) -> Any:
        """Returns the record for the other block. What is one record stays one, as Thunder unpacks each one once."""
        for each in self._order(origin):
            inputs = [self._done[id(one)] for one in each.inputs]
            if all(new is old for new, old in zip(inputs, each.inputs, strict=True)):
                self._done[id(each)] = each
            else:
                new = copy.copy(each)
                new.inputs = inputs
                vars(new).pop("proxy", None)
                self._done[id(each)] = new
        return self._done[id(origin)]

    def _order(self, origin: Any) -> Iterator[Any]:
        """Yields what has not been copied, each after its inputs. No recursion: a chain of operations may be long."""
        pending = [(origin, False)]
        while pending:
            each, is_ready = pending.pop()
            if id(each) in self._done:
                continue
            if is_ready:
                yield each
            else:
                self._kept.append(each)
                pending.append((each, True))
                pending.extend((one, False) for one in each.inputs)


def outside(origin: Any, known: frozenset[int] | set[int]) -> Iterator[Any]:
    """Yields every record behind one that is neither a constant nor among those that are known, nor behind them."""
    pending, seen = [origin], set()
    while pending:
        each = pending.pop()
        if id(each) in seen or id(each) in known:
            continue
        seen.add(id(each))
        yield each
        pending.extend(each.inputs)
