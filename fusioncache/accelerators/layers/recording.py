"""Records what Thunder's interpreter does for one block: its reads, its bound symbols and the names that it generates.

An origin is Thunder's provenance record of a value. It is looked up in another block, and copied for another block.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.accelerator_api import interpreter
from fusioncache.thunder_adapter.hooks import name_instruction


def find_value(origin: Any, root: Any, module: Any) -> Any:
    """Returns a block's value at the place that an origin describes.

    Args:
        origin: Thunder's provenance record of a value of a block.
        root: the provenance record of that block.
        module: the block to look in.

    Raises:
        Declined: if the place is neither an attribute of a module nor an item of a plain container in one.
    """
    if origin is root:
        return module
    inst = name_instruction(origin.inst)
    if inst not in ("LOAD_ATTR", "BINARY_SUBSCR") or name_instruction(origin.inputs[1].inst) != "CONSTANT":
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
    """Returns a module's address and the name if a value is that module's attribute; None if it is no attribute."""
    if name_instruction(origin.inst) != "LOAD_ATTR" or origin is root:
        return None
    return id(find_value(origin.inputs[0], root, module)), origin.inputs[1].value


class Copies:
    """Copies of provenance records for another block, with those of the block and its arguments replaced."""

    def __init__(self, others: Mapping[int, Any]) -> None:
        """Takes the replacing records, by the addresses of the first block's records."""
        self._done = dict(others)
        self._kept: list[Any] = []

    def copy(self, origin: Any) -> Any:
        """Returns the record for the other block. Copies each record once, because Thunder unpacks each record once."""
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
        """Yields records to be copied, each after its inputs. Not recursive: a chain of operations may be long."""
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


def walk_provenance(origin: Any, known: frozenset[int] | set[int]) -> Iterator[Any]:
    """Yields a provenance record and its transitive inputs, without known ones and inputs of only those."""
    pending, seen = [origin], set()
    while pending:
        each = pending.pop()
        if id(each) in seen or id(each) in known:
            continue
        seen.add(id(each))
        yield each
        pending.extend(each.inputs)


@dataclass(frozen=True, slots=True)
class BlockRead:
    """A parameter, buffer or plain value of a block that got a proxy, and thereby a guard.

    Attributes:
        origin: Thunder's provenance record of it.
        value: the value.
        proxy: the proxy that represents it.
        symbols: how many bound symbols the block had added before.
        names: how many names the block had generated before.
        wrapper: the interpreter's wrapper, through which looks at a plain value are noticed.
    """

    origin: Any
    value: Any
    proxy: Any
    symbols: int
    names: int
    wrapper: Any


@dataclass(slots=True)
class BlockRecording:
    """The recorded interpretation of one block.

    Attributes:
        module: the block.
        root: Thunder's provenance record of the block.
        args: its arguments in the interpreter's wrappers, keyword arguments last.
        keywords: the names of the keyword arguments.
        start: the state of the trace at the start.
        reads: the values read from the block, in order.
        symbols: the bound symbols that it added to the trace.
        touched: the positions of the reads whose value was looked at.
        result: the block's result, wrapped.
        counts: the change of the trace's state from start to end.
        source: the trace's current source location at the end.
        varied: the positions of arguments that differed for a block which was interpreted as predicted. For any other
            argument it is unknown whether the block uses it, or got the same value in another way.
    """

    module: Any
    root: Any
    args: tuple[Any, ...]
    keywords: tuple[str, ...]
    start: State
    described: tuple[Any, ...] = ()
    reads: list[BlockRead] = field(default_factory=list)
    symbols: list[Any] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    result: Any = None
    counts: State | None = None
    source: tuple[Any, Any] = (None, None)
    varied: frozenset[int] = frozenset()
    refusal: str | None = None
    is_proved: bool = False

    def refuse(self, reason: str) -> None:
        """Records why this block cannot be copied. Only the first reason is stored."""
        self.refusal = self.refusal or reason

    def note_read(self, wrapper: Any, value: Any, proxy: Any, symbols: int, names: int) -> None:
        """Records that a value of the block got a proxy. If it is a number or text, later looks at it are noticed."""
        position = len(self.reads)
        self.reads.append(BlockRead(wrapper.provenance, value, proxy, symbols, names, wrapper))
        if isinstance(value, int | float | str):
            watch(wrapper, lambda: self.touched.add(position))

    def end(self) -> None:
        """Stops noticing looks."""
        for read in self.reads:
            unwatch(read.wrapper)

    def finish(self, result: Any) -> None:
        """Stores the result, and checks that the block can be copied.

        Raises:
            Declined: if it cannot.
        """
        if self.refusal is not None:
            raise Declined(self.refusal, Scope.BLOCK)
        self.result = result
        known = _collect(self.root, *(arg.provenance for arg in self.args)) - {id(self.root)}
        for read in self.reads:
            found = find_value(read.origin, self.root, self.module)
            if found is not read.value and not (found == read.value and type(found) is type(read.value)):
                raise Declined("a value is not what is found at its place", Scope.BLOCK)
            if any(getattr(each, "proxy", None) is not None for each in walk_provenance(read.origin, known)):
                raise Declined("a value has been unpacked before", Scope.BLOCK)


class State(NamedTuple):
    """The state of a trace: its numbers of symbols, names, guards, renamed proxies, set attributes and others."""

    symbols: int
    names: int
    objects: int
    guards: int
    renamed: int
    stored: int
    scopes: int
    operators: int

    @classmethod
    def of(cls, context: Any) -> State:
        """Returns the state of a context's trace."""
        trace = context.computation_trace
        stored = sum(len(each) for each in context._additional_outputs.values())
        return cls(
            len(trace.bound_symbols), trace.name_ctr, trace.obj_name_ctr, len(context._constraints),
            len(context._proxy_swapmap), stored, len(trace.scopes), context.ad_hoc_executor.counter,
        )  # fmt: skip

    def until(self, later: State) -> State:
        """Returns the increase of each number up to a later state."""
        return State(*(new - old for new, old in zip(later, self, strict=True)))


def _collect(*roots: Any) -> set[int]:
    return {id(each) for root in roots for each in walk_provenance(root, frozenset())}


def watch(wrapper: Any, touch: Any) -> None:
    """Makes an interpreter's wrapper call ``touch`` whenever its value is read or set."""
    vars(wrapper)["touch"] = touch
    wrapper.__class__ = _watched_class()


def unwatch(wrapper: Any) -> None:
    """Undoes ``watch`` for a wrapper. One that is not watched stays as it is."""
    wrapper.__class__ = interpreter.WrappedValue
    vars(wrapper).pop("touch", None)


@cache
def _watched_class() -> type:
    def get(self: Any) -> Any:
        vars(self)["touch"]()
        return vars(self)["value"]

    def put(self: Any, value: Any) -> None:
        vars(self)["touch"]()
        vars(self)["value"] = value

    return type("WatchedValue", (interpreter.WrappedValue,), {"value": property(get, put)})
