"""The memory that all captures of one device share, and whose it is at a moment.

While a forward program is captured, its memory comes from one pool. What it does not hold at the end goes to the
forward programs that are captured later. Backward programs have another pool, and a rule of its own: see ``loans.py``.
So a replay overwrites whatever lies in memory that it had, and that is harmless but for one thing: tensors that a
forward program saved stay in the pool until the backward program took them. Until then they are promised.

The rule: a capture may be replayed only while all that is promised was promised, and owned, when it was captured. The
pool did not give it that memory then. And nothing is captured while something is promised that nobody owns any more.

Only one thread at a time captures or replays, and none waits for another: it runs its program as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol
from weakref import ref

from fusioncache.accelerators.graphs.loans import Loans
from fusioncache.accelerators.graphs.recorder import Recorder
from fusioncache.process import forks

PROMISED = "its memory is in use until the backward pass of another program"
"""Why something is not replayed, or captured, at a moment."""

MOST_CAPTURES = 32
"""How many forward programs are captured at a time on one device. The one that was not called for longest goes."""


class Tenant(Protocol):
    """A captured forward program."""

    @property
    def owns_saved(self) -> bool:
        """Tells whether it owns the memory of the tensors that it saves, so that no capture is given it."""

    def renew(self) -> None:
        """Has it captured anew when it is next called, and so own that memory again."""

    def leave(self) -> None:
        """Drops it."""


class GraphMemory:
    """The pool of one device.

    Args:
        recorder: captures there.

    Attributes:
        recorder: the same.
        loans: what backward programs lent out of their pool.
    """

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.loans = Loans()
        self._promised: dict[object, Tenant] = {}
        # Weak: what was captured of a model goes with the model.
        self._tenants: OrderedDict[object, ref[Tenant]] = OrderedDict()
        self._turn = forks.lock()
        self._is_taken = False

    def begin(self) -> str | None:
        """Begins a turn of this thread; returns why there is none instead, if there is none now."""
        if not self._turn.acquire(blocking=False):
            return "another thread replays"
        reason = "a capture is under way" if self._is_taken else self.recorder.explain_unready()
        if reason is not None:
            self._turn.release()
            return reason
        self._is_taken = True
        return None

    def end(self) -> None:
        """Ends the turn."""
        self._is_taken = False
        self._turn.release()

    def catch_up(self) -> None:
        """Waits for what this thread launched that may read promised memory, unless replays wait for it anyway."""
        if self.recorder.explain_unready() is not None:
            self.recorder.finish()

    def is_promised(self, name: object) -> bool:
        """Tells whether tensors that this forward program saved wait for their backward."""
        return name in self._promised

    def allows(self, safe: frozenset[object]) -> bool:
        """Tells whether nothing is promised but to these."""
        return not self._promised or self._promised.keys() <= safe

    def allows_capture(self) -> bool:
        """Tells whether all that is promised is owned. What is not will be, after its next capture."""
        loose = [tenant for tenant in list(self._promised.values()) if not tenant.owns_saved]
        for tenant in loose:
            tenant.renew()
        return not loose

    def list_promised(self) -> frozenset[object]:
        """Returns the names of those to whom something is promised."""
        return frozenset(self._promised)

    def promise(self, name: object, tenant: Tenant) -> Callable[[], None]:
        """Keeps what a forward program saved from now on, until what is returned is called."""
        self._promised[name] = tenant

        def release() -> None:
            self._promised.pop(name, None)

        return release

    def add(self, name: object, tenant: Tenant) -> None:
        """Adds a captured forward program. If there are too many, others leave."""
        self._tenants[name] = ref(tenant)
        for gone in [each for each, weak in self._tenants.items() if weak() is None]:
            del self._tenants[gone]
        surplus = len(self._tenants) - MOST_CAPTURES
        if surplus > 0:
            idle = [each for each in self._tenants if each is not name and not self.is_promised(each)]
            for oldest in idle[:surplus]:
                self.remove(oldest)

    def touch(self, name: object) -> None:
        """Says that a captured forward program is called."""
        if name in self._tenants:
            self._tenants.move_to_end(name)

    def remove(self, name: object) -> None:
        """Drops a captured forward program, once nothing of it runs any more."""
        weak = self._tenants.pop(name, None)
        tenant = weak() if weak else None
        if tenant is not None:
            self.recorder.finish()
            tenant.leave()
