"""What was done while a program was interpreted: operations that were called, tensors that were read, sizes looked at.

The entries are in the order in which it happened. To do the same at other sizes, each is done again; at those where
every look has the same outcome, interpreting the program would do just this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusioncache.accelerators.sizes.arguments import Place
from fusioncache.accelerators.sizes.expressions import Expression
from fusioncache.accelerators.sizes.first_traces import FirstTraces


@dataclass(frozen=True, slots=True)
class Look:
    """Something that depends on how two numbers compare.

    Attributes:
        symbol: one of ``expressions.COMPARISONS``.
        left: the first number.
        right: the second one; where the value itself was asked for, the value that it had.
        outcome: whether it was true.
        reason: what the program did.
        place: the file and the line of source, where known.
    """

    symbol: str
    left: Expression
    right: Expression
    outcome: bool
    reason: str
    place: str

    def __str__(self) -> str:
        """Returns what was looked at, by what, where."""
        is_so = "" if self.outcome else "not "
        # Of an installed package its own path says enough, and is the same on every machine.
        place = self.place.rpartition("/site-packages/")[2]
        return f"{place} {self.reason}: {is_so}{self.left} {self.symbol} {self.right}"


@dataclass(frozen=True, slots=True)
class TensorName:
    """A place in the arguments or the result of an operation that a proxy stands at.

    Attributes:
        name: the name that the proxy had.
    """

    name: str


@dataclass(frozen=True, slots=True)
class OperationCall:
    """An operation that was called.

    Attributes:
        function: the function of Thunder's that was called.
        args: what with: tensors and expressions in the places of proxies and sizes, all else as it was.
        kwargs: and by keyword.
        result: what it returned; each integer in it is a number that has a position.
        names: how many names had been counted off before, and after.
        location: the line of source that the trace has for it.
        has_gradients: whether gradients were enabled.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any
    names: tuple[int, int]
    location: tuple[Any, Any]
    has_gradients: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A value from outside that was given a proxy.

    Attributes:
        proxy: the proxy.
        names: how many names had been counted off before, and after.
    """

    proxy: Any
    names: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Naming:
    """A variable that a proxy was stored in: its name is the proxy's from then on, if that is free.

    Attributes:
        tensor: the name that the proxy had.
        name: the name of the variable.
    """

    tensor: str
    name: str


type Entry = Look | OperationCall | Reading | Naming


@dataclass(slots=True)
class Journal:
    """What happened in one trace.

    Attributes:
        entries: in order.
        refusals: why this cannot be done again at other sizes, whichever.
        traces: Thunder's first traces; None before all is done.
        renamed: the names that proxies had while they were made, by those of variables that they were given later.
        integers: the positions of numbers that are arguments themselves, by their places.
    """

    entries: list[Entry] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    traces: FirstTraces | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    integers: dict[Place, int] = field(default_factory=dict)

    def looks(self) -> tuple[Look, ...]:
        """Returns the looks, each once."""
        return tuple(dict.fromkeys(each for each in self.entries if isinstance(each, Look)))

    def refuse(self, reason: str) -> None:
        """Notes a reason, once."""
        if reason not in self.refusals:
            self.refusals.append(reason)
