"""The memory that all captures of one device share, and which tensors in it are still in use.

While a forward program is captured, its memory comes from one pool. What it does not hold at the end goes to forward
programs that are captured later. So a replay overwrites all memory that its capture had. That is harmless but for two
kinds of tensors:

- tensors that a forward program saved stay in the pool until its backward took them. Until then they are *leased*. A
  capture may be replayed only while all that is leased was leased, and owned, when it was captured: then the pool
  did not give it that memory. Nothing is captured while something is leased that has no owner any more.
- gradients that a backward program leaves in its own pool are *lent*: the caller may keep them. A gradient lease is
  over when only this module still refers to the memory, which is counted, and when its backward pass is over: until
  then autograd may read it on another stream. The same rule holds for replays and captures of backward programs.
  Where gradients are held on to, the same program is captured again in another pool.

Only one thread at a time captures or replays, and none waits for another: it runs its program as it is.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import torch

from fusioncache.accelerators.graphs.buffers import Aliases, Copier
from fusioncache.accelerators.graphs.cuda import CudaRecorder
from fusioncache.ir.errors import Declined, Scope
from fusioncache.process import forks

if TYPE_CHECKING:
    from fusioncache.accelerators.graphs.captures import CapturedForward

LENT = "gradients of an earlier backward pass that are still referenced"
"""Why a backward program is not replayed, or captured, at a moment."""

POOLS = range(1, 5)
"""The pools of backward programs, of which all but the first are for what is captured again."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Keeper:
    """Lives as long as lent memory of a graph is in use, and so does the graph: with it the pool would go.

    Attributes:
        replay: of the graph.
    """

    replay: Callable[[], None]


class GradientLease:
    """What one captured backward program gives as it lies.

    Args:
        copier: has the tensors. From now on it holds their memory as often as it does.
        keeper: of the memory.
        owners: the tensors that own the memory in the pool.
        pool: where it is.

    Attributes:
        name: by which others know it without having it.
        keeper: the same, if any of it is in use.
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
        return list(map(torch._C._storage_Use_Count, self._addresses)), list(map(sys.getrefcount, self._storages))

    @property
    def is_owned(self) -> bool:
        """True if the memory is ours, so that no capture is given it."""
        return bool(self._owners)

    def is_out(self) -> bool:
        """True if the memory has another user, or the backward that is under way may read it."""
        return _find_task() == self._task != -1 or self.is_held()

    def is_held(self) -> bool:
        """True if the memory has another user."""
        return self._count() != self._at_rest

    def lend(self) -> list[Any]:
        """Returns the tensors in the memory of the graph, in order."""
        self._task = _find_task()
        return self._copier.lend()

    def let_go(self) -> None:
        """Leaves the memory to captures that come later. It is for the time in which nothing of it is lent."""
        self._owners = ()


class GradientLeases:
    """What the backward programs of one device have lent. Memory without another user goes with its graph."""

    def __init__(self) -> None:
        self._out: dict[int, dict[object, tuple[ref[Keeper], ref[GradientLease]]]] = {pool: {} for pool in POOLS}
        self._known: WeakSet[GradientLease] = WeakSet()

    def settle(self) -> None:
        """Finds out what is back."""
        for out in self._out.values():
            for name, (keeper, gradient_lease) in [*out.items()]:
                if keeper() is None or ((own := gradient_lease()) is not None and not own.is_out()):
                    del out[name]

    def add(self, gradient_lease: GradientLease) -> None:
        """Says that something is lent from now on."""
        self._known.add(gradient_lease)
        self._out[gradient_lease.pool][gradient_lease.name] = gradient_lease.keeper, ref(gradient_lease)

    def list_names(self, pool: int) -> frozenset[object]:
        """Returns the names of what is lent out of a pool."""
        return frozenset(self._out[pool])

    def allows(self, pool: int, safe: frozenset[object]) -> bool:
        """True if nothing is lent out of a pool but these."""
        return self._out[pool].keys() <= safe

    def find_pool(self, others: Collection[int]) -> int | None:
        """Returns the pool for a capture, which is none of the others; None if there is none now.

        What is not lent out of it goes to the capture. If there is no pool, copies are given from now on of what is
        lent at this moment.
        """
        for pool in POOLS:
            if pool not in others and all(
                gradient_lease is not None and gradient_lease.is_owned for gradient_lease in self._list(pool)
            ):
                for gradient_lease in self._known:
                    if gradient_lease.pool == pool and gradient_lease.name not in self._out[pool]:
                        gradient_lease.let_go()
                return pool
        for gradient_lease in [each for pool in POOLS for each in self._list(pool) if each is not None]:
            gradient_lease.is_recalled = True
        return None

    def _list(self, pool: int) -> list[GradientLease | None]:
        """Returns what is lent out of a pool; None for what was captured and is gone."""
        return [gradient_lease() for _, gradient_lease in self._out[pool].values()]


def _find_task() -> int:
    """Returns the number of the backward that is under way on this thread; -1 if there is none."""
    return int(torch._C._current_graph_task_id())


@cache
def can_lend() -> bool:
    """True if this torch says who holds memory, and keeps what is attached to memory as long as that is held."""
    if not all(hasattr(torch._C, name) for name in ("_storage_Use_Count", "_current_graph_task_id")):
        return False
    keeper, memory = Keeper(lambda: None), torch.zeros(8, device="cpu")
    kept = ref(keeper)
    copier = Copier([memory], Aliases(keeper))
    gradient_lease = GradientLease(copier, keeper, [], 1)
    del keeper
    (lent,) = gradient_lease.lend()
    steps = [kept() is not None, gradient_lease.is_held(), lent.data_ptr() == memory.data_ptr()]
    held = lent.untyped_storage()
    del lent
    steps.append(gradient_lease.is_held())
    del held
    steps.append(not gradient_lease.is_held())
    (lent,) = gradient_lease.lend()
    del copier, gradient_lease
    steps.append(kept() is not None)
    del lent
    return all(steps) and kept() is None


class SavedTensorsLease:
    """Ends when the backward program has run for the last time, or when autograd forgets it.

    Args:
        captured: the ``CapturedForward`` that saved the tensors.
        outside: where those are that do not lie in the pool, and how.
        release: ends it.

    Attributes:
        captured: the same.
        outside: the same.
    """

    __slots__ = ("_release", "captured", "outside")

    def __init__(self, captured: Any, outside: object, release: Callable[[], None]):
        self.captured = captured
        self.outside = outside
        self._release: Callable[[], None] | None = release

    @property
    def is_over(self) -> bool:
        """True if other programs may have overwritten the tensors."""
        return self._release is None

    def end(self) -> None:
        """Ends it, if it is not over."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self.end()


class SavedValues(tuple[Any, ...]):
    """What a program saves for its backward besides tensors, and the lease of their memory.

    Autograd keeps it as long as the tensors, and gives it back with them.

    Attributes:
        lease: the lease.
    """

    lease: SavedTensorsLease

    @classmethod
    def make(cls, values: Iterable[Any], lease: SavedTensorsLease) -> SavedValues:
        """Returns the values with a lease."""
        made = cls(values)
        made.lease = lease
        return made


def find_lease(values: object) -> SavedTensorsLease | None:
    """Returns the lease that came with what a program saved; None if it ran without a graph."""
    return values.lease if isinstance(values, SavedValues) else None


LEASED = "its memory is in use until the backward pass of another program"
"""Why something is not replayed, or captured, at a moment."""

MOST_CAPTURES = 32
"""How many forward programs are captured at a time on one device. The one that was not called for longest goes."""


class GraphMemory:
    """The pool of one device.

    Args:
        recorder: captures there.

    Attributes:
        recorder: the same.
        gradient_leases: what backward programs lent out of their pool.
    """

    def __init__(self, recorder: CudaRecorder):
        self.recorder = recorder
        self.gradient_leases = GradientLeases()
        self._leased: dict[object, CapturedForward] = {}
        # Weak: what was captured of a model goes with the model.
        self._captures: OrderedDict[object, ref[CapturedForward]] = OrderedDict()
        self._turn = forks.lock()
        self._is_taken = False

    def begin(self) -> None:
        """Begins the turn of this thread.

        Raises:
            Declined: if it cannot begin now.
        """
        if not self._turn.acquire(blocking=False):
            raise Declined("another thread replays", Scope.CAPTURE)
        reason = "a capture is under way" if self._is_taken else self.recorder.explain_unready()
        if reason is not None:
            self._turn.release()
            raise Declined(reason, Scope.CAPTURE)
        self._is_taken = True

    def end(self) -> None:
        """Ends the turn."""
        self._is_taken = False
        self._turn.release()

    def catch_up(self) -> None:
        """Waits for what this thread launched that may read leased memory, unless replays wait for it anyway."""
        if self.recorder.explain_unready() is not None:
            self.recorder.finish()

    def is_leased(self, name: object) -> bool:
        """True if tensors that this forward program saved wait for their backward."""
        return name in self._leased

    def allows(self, safe: frozenset[object]) -> bool:
        """True if nothing is leased but to these."""
        return not self._leased or self._leased.keys() <= safe

    def allows_capture(self) -> bool:
        """True if all that is leased is owned. What is not will be, after its next capture."""
        loose = [capture for capture in list(self._leased.values()) if not capture.owns_saved]
        for capture in loose:
            capture.renew()
        return not loose

    def list_leased(self) -> frozenset[object]:
        """Returns the names of those to whom something is leased."""
        return frozenset(self._leased)

    def lease(self, name: object, capture: CapturedForward) -> Callable[[], None]:
        """Keeps what a forward program saved from now on, until what is returned is called."""
        self._leased[name] = capture

        def release() -> None:
            self._leased.pop(name, None)

        return release

    def add(self, name: object, capture: CapturedForward) -> None:
        """Adds a captured forward program. If there are too many, others leave."""
        self._captures[name] = ref(capture)
        for gone in [each for each, weak in self._captures.items() if weak() is None]:
            del self._captures[gone]
        surplus = len(self._captures) - MOST_CAPTURES
        if surplus > 0:
            idle = [each for each in self._captures if each is not name and not self.is_leased(each)]
            for oldest in idle[:surplus]:
                self.remove(oldest)

    def touch(self, name: object) -> None:
        """Says that a captured forward program is called."""
        if name in self._captures:
            self._captures.move_to_end(name)

    def remove(self, name: object) -> None:
        """Drops a captured forward program, once nothing of it runs any more."""
        weak = self._captures.pop(name, None)
        capture = weak() if weak else None
        if capture is not None:
            self.recorder.finish()
            capture.leave()
