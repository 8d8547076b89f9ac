"""Classes that were described for one key, and are not described again while nothing of them changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusioncache.accelerators.programs.fingerprint import Fingerprint, is_fit
from fusioncache.accelerators.programs.memory import ClassContent, Memory
from fusioncache.accelerators.programs.records import Record

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownClass:
    """What a class is by itself.

    Attributes:
        content: the description.
        record: what a describer learned when it described the class.
        fingerprint: of all objects that the description was made of.
    """

    content: ClassContent
    record: Record
    fingerprint: Fingerprint


@dataclass(slots=True, eq=False, repr=False)
class KnownClasses:
    """The classes of one key, by their identities.

    Attributes:
        known: those that were described before.
        is_learning: whether they are remembered for a later key.
        found: those that this key met and that are remembered.
    """

    known: Mapping[int, KnownClass] = field(default_factory=dict)
    is_learning: bool = False
    found: dict[int, KnownClass] = field(default_factory=dict)
    _held: dict[int, bool] = field(default_factory=dict)

    def are_unchanged(self, classes: Iterable[int]) -> bool:
        """Returns whether all these classes are known and as they were."""
        return all(map(self._holds, classes))

    def recall(self, cls: type, memory: Memory) -> ClassContent | None:
        """Returns what a class is, and teaches a describer what it would learn from it; None if that is not known."""
        if not self._holds(id(cls)) or not self.known[id(cls)].record.teach(memory):
            return None
        found = self.found[id(cls)] = self.known[id(cls)]
        return found.content

    def learn(self, cls: type, content: ClassContent, record: Record | None) -> None:
        """Remembers what a class is, if that does not depend on what was described before it."""
        fingerprint = take_fingerprint(record) if record is not None else None
        if record is not None and fingerprint is not None:
            self.found[id(cls)] = KnownClass(content, record, fingerprint)

    def list_reached(self, record: Record) -> dict[int, KnownClass] | None:
        """Returns the classes of which a text has the digests; None if one of them is not remembered."""
        waiting, reached = [each for each, _ in record.classes.values()], dict[int, KnownClass]()
        while waiting:
            identity = id(waiting.pop())
            if identity not in self.found:
                return None
            if identity not in reached:
                reached[identity] = self.found[identity]
                waiting += reached[identity].content.classes
        return reached

    def _holds(self, identity: int) -> bool:
        held = self._held.get(identity)
        if held is None:
            held = self._held[identity] = identity in self.known and self.known[identity].fingerprint.holds()
        return held


def take_fingerprint(record: Record) -> Fingerprint | None:
    """Returns the fingerprint of all objects that a text was made of; None if there can be none."""
    if not is_fit(record.met):
        return None
    try:
        return Fingerprint(record.met, [each for each, _ in record.classes.values()])
    except Exception:  # there is too much of it, or an object is damaged
        logger.info("a class or the function map is described for each key", exc_info=True)
        return None
