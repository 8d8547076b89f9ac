"""The memory that all captures of one device share, and the tensors in it that are still in use.

While a forward program is captured, its memory comes from one pool. Memory that it does not hold at the end goes to
forward programs that are captured later. So a replay overwrites all memory that its capture used. This is harmless
except for two kinds of tensors:

- tensors saved by a forward program stay in the pool until its backward has read them. Until then they are *leased*. A
  capture may be replayed only if each current lease existed, and its memory was owned, at the time of the capture: then
  the pool did not reuse that memory. Nothing is captured while leased memory has lost its owner.
- gradients that a backward program leaves in its own pool are *lent*: the caller may keep them. A gradient lease ends
  when the reference counts of its memory show no other user and its backward pass is over: until then autograd may
  read the memory on another stream. The same rule holds for replays and captures of backward programs. While
  gradients are still referenced, the same program is captured again in another pool.

Only one thread at a time captures or replays. Other threads do not wait: they run their program without a graph.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
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
"""The reason why a backward program cannot be replayed or captured now."""

POOLS = range(1, 5)
"""The pools of backward programs. All but the first are for programs that are captured again."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Keeper:
    """Keeps a graph alive while its lent memory is in use: the pool would be freed with the graph.

    Attributes:
        replay: replays the graph, and holds a reference to it.
    """

    replay: Callable[[], None]


class GradientLease:
    """The gradients that one captured backward program returns without a copy.

    Args:
        copier: holds the tensors. Its number of references to their memory must not change from now on.
        keeper: lives as long as the memory is in use.
        owners: the tensors that own the memory in the pool.
        pool: the number of the pool.

    Attributes:
        name: identifies the lease without a reference to it.
        keeper: a weak reference to the keeper; dead once none of the memory is in use.
        pool: the same.
        is_recalled: whether copies are returned from now on.
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
        """Returns two reference counts of each storage: those held by tensors, and those held by Python objects."""
        return list(map(torch._C._storage_Use_Count, self._addresses)), list(map(sys.getrefcount, self._storages))

    @property
    def is_owned(self) -> bool:
        """True if the lease owns the memory, so that the pool gives it to no capture."""
        return bool(self._owners)

    def is_out(self) -> bool:
        """True if the memory has another user, or the backward pass that runs on this thread may read it."""
        return _find_task() == self._task != -1 or self.is_held()

    def is_held(self) -> bool:
        """True if the memory has another user."""
        return self._count() != self._at_rest

    def lend(self) -> list[Any]:
        """Returns the tensors in the memory of the graph, in order."""
        self._task = _find_task()
        return self._copier.lend()

    def release_saved(self) -> None:
        """Releases the memory to later captures. Called only while none of it is lent."""
        self._owners = ()


class GradientLeases:
    """The gradient leases of the backward programs of one device. Memory without other users goes with its graph."""

    def __init__(self) -> None:
        self._out: dict[int, dict[object, tuple[ref[Keeper], ref[GradientLease]]]] = {pool: {} for pool in POOLS}
        self._known: WeakSet[GradientLease] = WeakSet()

    def settle(self) -> None:
        """Removes the leases that are over."""
        for out in self._out.values():
            for name, (keeper, gradient_lease) in [*out.items()]:
                if keeper() is None or ((own := gradient_lease()) is not None and not own.is_out()):
                    del out[name]

    def add(self, gradient_lease: GradientLease) -> None:
        """Adds a lease whose memory is lent from now on."""
        self._known.add(gradient_lease)
        self._out[gradient_lease.pool][gradient_lease.name] = gradient_lease.keeper, ref(gradient_lease)

    def list_names(self, pool: int) -> frozenset[object]:
        """Returns the names of the current leases of a pool."""
        return frozenset(self._out[pool])

    def allows(self, pool: int, safe: frozenset[object]) -> bool:
        """True if a pool has no current leases except these."""
        return self._out[pool].keys() <= safe

    def find_pool(self, others: Collection[int]) -> int | None:
        """Returns a pool for a capture, other than the given ones; None while all are in use.

        Memory of the pool that is not lent now is released to the capture. If there is no pool, all current leases are
        recalled: their programs return copies from now on.
        """
        for pool in POOLS:
            if pool not in others and all(
                gradient_lease is not None and gradient_lease.is_owned for gradient_lease in self._list(pool)
            ):
                for gradient_lease in self._known:
                    if gradient_lease.pool == pool and gradient_lease.name not in self._out[pool]:
                        gradient_lease.release_saved()
                return pool
        for gradient_lease in [each for pool in POOLS for each in self._list(pool) if each is not None]:
            gradient_lease.is_recalled = True
        return None

    def _list(self, pool: int) -> list[GradientLease | None]:
        """Returns the current leases of a pool; None for each whose capture was freed."""
        return [gradient_lease() for _, gradient_lease in self._out[pool].values()]


def _find_task() -> int:
    """Returns the number of the backward pass that runs on this thread; -1 if there is none."""
    return int(torch._C._current_graph_task_id())


@cache
def can_lend() -> bool:
    """True if this torch counts references to storages, and keeps a storage's attributes while it is in use."""
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
    """A lease that ends when the backward program has run for the last time, or when autograd frees it.

    Args:
        captured: the ``CapturedForward`` that saved the tensors.
        outside: addresses and strides of the saved tensors that are not in the pool.
        release: ends the lease.

    Attributes:
        captured: the same.
        outside: the same.
    """

    __slots__ = ("_release", "captured", "outside")

    def __init__(self, captured: Any, outside: object, release: Callable[[], object]):
        self.captured = captured
        self.outside = outside
        self._release: Callable[[], object] | None = release

    @property
    def is_over(self) -> bool:
        """True if other programs may have overwritten the tensors."""
        return self._release is None

    def end(self) -> None:
        """Ends the lease, if it is not over."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self.end()


class SavedValues(tuple[Any, ...]):
    """The values besides tensors that a program saves for its backward, with the lease of the tensors' memory.

    Autograd stores it as long as the saved tensors, and passes it to backward with them.

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
    """Returns the lease in the values that a program saved; None if it ran without a graph."""
    return values.lease if isinstance(values, SavedValues) else None


LEASED = "its memory is in use until the backward pass of another program"
"""The reason why a program cannot be replayed or captured now."""

MOST_CAPTURES = 32
"""The maximum number of captured forward programs on one device. The least recently called one is dropped."""


class GraphMemory:
    """The captures and leases in the memory pools of one device.

    Args:
        recorder: captures on the device.

    Attributes:
        recorder: the same.
        gradient_leases: of the backward programs.
    """

    def __init__(self, recorder: CudaRecorder):
        self.recorder = recorder
        self.gradient_leases = GradientLeases()
        self._leased: dict[object, CapturedForward] = {}
        # Weak references: the captures of a model are freed with the model.
        self._captures: OrderedDict[object, ref[CapturedForward]] = OrderedDict()
        self._turn = forks.lock()
        self._is_taken = False

    def begin(self) -> None:
        """Begins the turn of this thread, in which it may capture and replay.

        Raises:
            Declined: if the turn cannot begin now.
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

    def wait_for_readers(self) -> None:
        """Waits for kernels of this thread that may read leased memory, unless replays wait for them anyway."""
        if self.recorder.explain_unready() is not None:
            self.recorder.finish()

    def is_leased(self, name: object) -> bool:
        """True if tensors saved by this forward program are waiting for their backward."""
        return name in self._leased

    def allows(self, safe: frozenset[object]) -> bool:
        """True if no forward programs except these have leases."""
        return not self._leased or self._leased.keys() <= safe

    def allows_capture(self) -> bool:
        """True if all leased memory is owned. Captures that do not own theirs are renewed, and own it then."""
        loose = [capture for capture in list(self._leased.values()) if not capture.owns_saved]
        for capture in loose:
            capture.is_stale = True
        return not loose

    def list_leased(self) -> frozenset[object]:
        """Returns the names of the forward programs that have leases."""
        return frozenset(self._leased)

    def lease(self, name: object, capture: CapturedForward) -> Callable[[], object]:
        """Leases the tensors saved by a forward program, until the returned function is called."""
        self._leased[name] = capture
        return partial(self._leased.pop, name, None)

    def add(self, name: object, capture: CapturedForward) -> None:
        """Adds a captured forward program. If there are too many, drops others that have no lease."""
        self._captures[name] = ref(capture)
        for gone in [each for each, weak in self._captures.items() if weak() is None]:
            del self._captures[gone]
        surplus = len(self._captures) - MOST_CAPTURES
        if surplus > 0:
            idle = [each for each in self._captures if each is not name and not self.is_leased(each)]
            for oldest in idle[:surplus]:
                self.remove(oldest)

    def touch(self, name: object) -> None:
        """Marks a captured forward program as the most recently called one."""
        if name in self._captures:
            self._captures.move_to_end(name)

    def remove(self, name: object) -> None:
        """Drops a captured forward program, after waiting until the device no longer runs it."""
        weak = self._captures.pop(name, None)
        capture = weak() if weak else None
        if capture is not None:
            self.recorder.finish()
            capture.remove_from_owner()
