"""Decides when code for any sizes pays, where it cannot be stored.

nvFuser's code for any sizes takes ``GENERAL_COST`` times as long to compile as code for one size, one region after the
other, and is lost with the process. Code for one size is compiled by the pool, for all regions at once, and stored. So
each new length of a function first gets code of its own. Once the lengths of a function have waited as long for that
as its code for any sizes would take, the next length gets that code, and so do all that follow. If that estimate
is right, this costs at most about twice as much as the better of both ways. It is the rule of the ski rental problem
(Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching, 1988).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusioncache.cache.generals import Generation
from fusioncache.process import forks
from fusioncache.process.forks import LruMap

GENERAL_COST = 1.3
"""How many times as long code for any sizes takes to compile as code for one, both region by region. Measured on an
H200 with a narrow Llama of four layers by ``benchmarks/lengths``: 20 s and 16 s. The pool takes 4 s for the latter."""
_MOST_FUNCTIONS = 1024
_MOST_PROGRAMS = 64


@dataclass(slots=True)
class _Costs:
    """Of the programs of one function, all in seconds.

    Attributes:
        alone: what compiling the regions of a program for its own sizes takes, one after the other, by its number.
        waited: how long calls waited for code for their own sizes where code for any sizes might have served them.
        decided: whether a program gets code for any sizes, by its number.
    """

    alone: dict[int, float] = field(default_factory=dict)
    waited: float = 0.0
    decided: dict[int, bool] = field(default_factory=dict)

    def pays(self) -> bool:
        """True if code for any sizes would have taken no longer than the calls have waited already."""
        return bool(self.alone) and self.waited >= GENERAL_COST * max(self.alone.values())


class LengthRule:
    """What the programs of each function cost so far, and which of them get code for any sizes."""

    def __init__(self) -> None:
        self._costs: LruMap[object, _Costs] = LruMap(_MOST_FUNCTIONS)
        self._lock = forks.lock()

    def clear(self) -> None:
        """Forgets the costs of all functions."""
        self._costs.clear()

    def note(self, program: Generation, alone: float, waited: float, *, may_share: bool) -> None:
        """Adds a region that was compiled, or loaded, for its own sizes.

        Args:
            program: that the region is of.
            alone: seconds that compiling it by itself takes.
            waited: seconds that the call waited for it.
            may_share: whether code for any sizes might have served it.
        """
        with self._lock:
            costs = self._find(program)
            costs.alone[program.number] = costs.alone.get(program.number, 0.0) + alone
            _drop_oldest(costs.alone)
            costs.waited += waited if may_share else 0.0

    def takes_general(self, program: Generation) -> bool:
        """True if the regions of a program are to get code for any sizes. The answer for a program does not change."""
        with self._lock:
            costs = self._find(program)
            decision = costs.decided.setdefault(program.number, costs.pays())
            _drop_oldest(costs.decided)
            return decision

    def _find(self, program: Generation) -> _Costs:
        return self._costs.get_or_make(program.function, _Costs)[0]


def _drop_oldest(values: dict[int, float] | dict[int, bool]) -> None:
    while len(values) > _MOST_PROGRAMS:
        del values[next(iter(values))]
