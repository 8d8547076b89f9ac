"""Gradients that are given as they lie in the memory of a graph, and who still has them.

Captured backward programs take their memory from pools in which no forward program has any. What one of them computed
is *lent*: whoever is given it may keep it. It is back when nobody but us has the memory, which is counted, and when the
backward in which it was given is over: until then autograd may read it on another stream.

The rule: a backward program is replayed only while all that is lent out of its pool was lent, and owned, when it was
captured. The pool did not give it that memory then. And nothing is captured in a pool out of which something is lent
that nobody owns. Where gradients are held on to, the same program is captured again in another pool.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet, ref

from fusioncache.accelerators.graphs.aliases import Aliases
from fusioncache.accelerators.graphs.copies import Copier

LENT = "gradients of an earlier backward pass that are still referenced"
"""Why a backward program is not replayed, or captured, at a moment."""

POOLS = range(1, 5)
"""The pools of backward programs, of which all but the first are for what is captured again."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Keeper:
    """Lives as long as anybody has memory of a graph that was lent, and so does the graph: with it the pool would go.

    Attributes:
        replay: of the graph.
    """

    replay: Callable[[], None]


class Loan:
    """What one captured backward program gives as it lies.

    Args:
        copier: has the tensors. From now on it holds their memory as often as it does.
        keeper: of the memory.
        owners: the tensors that own the memory in the pool.
        pool: where it is.

    Attributes:
        name: by which others know it without having it.
        keeper: the same, if anybody has something of it.
        pool: the same.
        is_recalled: whether copies are to be given from now on.
    """

    __slots__ = (
        *("__weakref__", "_addresses", "_at_rest", "_copier", "_owners", "_storages", "_task"),
        *("is_recalled", "keeper", "name", "pool"),
    )

    def __init__(self, copier: Copier, keeper: Keeper, owners: Sequence[Any], pool: int):
        self.name = object()
        self.pool = pool
        self.keeper = ref(keeper)
        self.is_recalled = False
        self._copier = copier
        self._owners = tuple(owners)
        self._task = -1
        self._storages = tuple(copier.list_storages().values())
        self._addresses = tuple(storage._cdata for storage in self._storages)
        self._at_rest = self._count()

    def _count(self) -> tuple[list[int], list[int]]:
        """Returns how often each memory is held: by tensors, and by name in Python."""
        import torch

        return list(map(torch._C._storage_Use_Count, self._addresses)), list(map(sys.getrefcount, self._storages))

    @property
    def is_owned(self) -> bool:
        """Tells whether the memory is ours, so that no capture is given it."""
        return bool(self._owners)

    def is_out(self) -> bool:
        """Tells whether somebody else has the memory, or may be reading it in the backward that is under way."""
        return _find_task() == self._task != -1 or self.is_held()

    def is_held(self) -> bool:
        """Tells whether somebody else has the memory."""
        return self._count() != self._at_rest

    def lend(self) -> list[Any]:
        """Returns the tensors in the memory of the graph, in order."""
        self._task = _find_task()
        return self._copier.lend()

    def let_go(self) -> None:
        """Leaves the memory to captures that come later. It is for the time in which nothing of it is lent."""
        self._owners = ()


class Loans:
    """What the backward programs of one device have lent. What nobody else has of it goes with its graph."""

    def __init__(self) -> None:
        self._out: dict[int, dict[object, tuple[ref[Keeper], ref[Loan]]]] = {pool: {} for pool in POOLS}
        self._known: WeakSet[Loan] = WeakSet()

    def settle(self) -> None:
        """Finds out what is back."""
        for out in self._out.values():
            for name, (keeper, loan) in [*out.items()]:
                if keeper() is None or ((own := loan()) is not None and not own.is_out()):
                    del out[name]

    def add(self, loan: Loan) -> None:
        """Says that something is lent from now on."""
        self._known.add(loan)
        self._out[loan.pool][loan.name] = loan.keeper, ref(loan)

    def list_names(self, pool: int) -> frozenset[object]:
        """Returns the names of what is lent out of a pool."""
        return frozenset(self._out[pool])

    def allows(self, pool: int, safe: frozenset[object]) -> bool:
        """Tells whether nothing is lent out of a pool but these."""
        return self._out[pool].keys() <= safe

    def find_pool(self, others: Collection[int]) -> int | None:
        """Returns the pool for a capture, which is none of the others; None if there is none now.

        What is not lent out of it goes to the capture. If there is no pool, copies are given from now on of what is
        lent at this moment.
        """
        for pool in POOLS:
            if pool not in others and all(loan is not None and loan.is_owned for loan in self._list(pool)):
                for loan in self._known:
                    if loan.pool == pool and loan.name not in self._out[pool]:
                        loan.let_go()
                return pool
        for loan in [each for pool in POOLS for each in self._list(pool) if each is not None]:
            loan.is_recalled = True
        return None

    def _list(self, pool: int) -> list[Loan | None]:
        """Returns what is lent out of a pool; None for what was captured and is gone."""
        return [loan() for _, loan in self._out[pool].values()]


def _find_task() -> int:
    """Returns the number of the backward that is under way on this thread; -1 if there is none."""
    import torch

    return int(torch._C._current_graph_task_id())


@cache
def can_lend() -> bool:
    """Tells whether this torch says who holds memory, and keeps what is attached to memory as long as that is held."""
    import torch

    if not all(hasattr(torch._C, name) for name in ("_storage_Use_Count", "_current_graph_task_id")):
        return False
    keeper, memory = Keeper(lambda: None), torch.zeros(8, device="cpu")
    kept = ref(keeper)
    copier = Copier([memory], Aliases(keeper))
    loan = Loan(copier, keeper, [], 1)
    del keeper
    (lent,) = loan.lend()
    steps = [kept() is not None, loan.is_held(), lent.data_ptr() == memory.data_ptr()]
    held = lent.untyped_storage()
    del lent
    steps.append(loan.is_held())
    del held
    steps.append(not loan.is_held())
    (lent,) = loan.lend()
    del copier, loan
    steps.append(kept() is not None)
    del lent
    return all(steps) and kept() is None
