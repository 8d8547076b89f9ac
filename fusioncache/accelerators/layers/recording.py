"""What Thunder's interpreter did for one block: what it read of it, which symbols it called, which names it took.

Where a value comes from is Thunder's record of it: it is looked up in another block, and written for another block.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


@dataclass(frozen=True, slots=True)
class BlockRead:
    """A parameter, buffer or plain value of the block that was given a proxy, and thereby a guard.

    Attributes:
        origin: Thunder's record of where it was found.
        value: what was found.
        proxy: what stands for it.
        symbols: how many symbols had been called before, of those of the block.
        names: how many names had been counted off before.
        wrapper: the interpreter's, while it is watched whether anything looks at the value.
    """

    origin: Any
    value: Any
    proxy: Any
    symbols: int
    names: int
    wrapper: Any


@dataclass(slots=True)
class BlockRecording:
    """What happened while one block was interpreted.

    Attributes:
        module: the block.
        root: Thunder's record of where the block was found.
        args: what it was called with, in the interpreter's wrappers, those by keyword last.
        keywords: the names of the last ones.
        start: how far the trace was.
        reads: what was read of the block, in order.
        symbols: the bound symbols that it added to the trace.
        touched: the reads, by position, whose value was looked at.
        result: what the block returned, wrapped.
        counts: how far the trace was at the end, less the start.
        source: what the trace had as the current line of source at the end.
        varied: the arguments, by position, for which a block that came out as predicted was given others. Of any other
            one it is unknown whether the block uses its argument, or found the same value in another way.
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
    _watched: list[Any] = field(default_factory=list)

    def refuse(self, reason: str) -> None:
        """Notes why this block cannot be written out for others. The first reason is kept."""
        self.refusal = self.refusal or reason

    def note_read(self, wrapper: Any, value: Any, proxy: Any, symbols: int, names: int) -> None:
        """Notes that a value of the block was given a proxy, and watches whether anything looks at it from now on."""
        position = len(self.reads)
        self.reads.append(BlockRead(wrapper.provenance, value, proxy, symbols, names, wrapper))
        if isinstance(value, int | float | str):
            watch(wrapper, lambda: self.touched.add(position))
            self._watched.append(wrapper)

    def end(self) -> None:
        """Ends watching."""
        for wrapper in self._watched:
            unwatch(wrapper)
        self._watched.clear()

    def finish(self, result: Any) -> None:
        """Checks that everything was of a kind that can be written out.

        Raises:
            Declined: if something was not.
        """
        if self.refusal is not None:
            raise Declined(self.refusal, Scope.BLOCK)
        self.result = result
        known = _collect(self.root, *(arg.provenance for arg in self.args)) - {id(self.root)}
        for read in self.reads:
            found = find_value(read.origin, self.root, self.module)
            if found is not read.value and not (found == read.value and type(found) is type(read.value)):
                raise Declined("a value is not what is found at its place", Scope.BLOCK)
            if any(getattr(each, "proxy", None) is not None for each in outside(read.origin, known)):
                raise Declined("a value has been unpacked before", Scope.BLOCK)


class State(NamedTuple):
    """How far a trace is: symbols, names counted off, guards, proxies renamed, attributes set."""

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
        """Returns how far the trace of this context is."""
        trace = context.computation_trace
        stored = sum(len(each) for each in context._additional_outputs.values())
        return cls(
            len(trace.bound_symbols), trace.name_ctr, trace.obj_name_ctr, len(context._constraints),
            len(context._proxy_swapmap), stored, len(trace.scopes), context.ad_hoc_executor.counter,
        )  # fmt: skip

    def until(self, later: State) -> State:
        """Returns what was added until later."""
        return State(*(new - old for new, old in zip(later, self, strict=True)))


def _collect(*roots: Any) -> set[int]:
    return {id(each) for root in roots for each in outside(root, frozenset())}


def watch(wrapper: Any, touch: Any) -> None:
    """Has something called whenever anything asks an interpreter's wrapper for its value."""
    vars(wrapper)["touch"] = touch
    wrapper.__class__ = _watched_class()


def unwatch(wrapper: Any) -> None:
    """Makes a wrapper again what it was."""
    from fusioncache.thunder_adapter.accelerator_api import WrappedValue

    wrapper.__class__ = WrappedValue
    vars(wrapper).pop("touch", None)


_classes: dict[type, type] = {}


def _watched_class() -> type:
    from fusioncache.thunder_adapter.accelerator_api import WrappedValue

    if WrappedValue not in _classes:

        def get(self: Any) -> Any:
            vars(self)["touch"]()
            return vars(self)["value"]

        def put(self: Any, value: Any) -> None:
            vars(self)["touch"]()
            vars(self)["value"] = value

        _classes[WrappedValue] = type("WatchedValue", (WrappedValue,), {"value": property(get, put)})
    return _classes[WrappedValue]
