"""Classes that were described for one key, and need not be described again for the next while nothing of them changed.

Whether it did is for others to see (``known_parts.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusioncache.program.memory import ClassContent, Memory
from fusioncache.program.records import Record
from fusioncache.program.writer import Handler


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownClass:
    """What a class is by itself, and what was learned from it.

    Attributes:
        content: what it is.
        record: what a describer learned when it described the class.
    """

    content: ClassContent
    record: Record


@dataclass(slots=True, eq=False, repr=False)
class KnownClasses:
    """The classes of one key.

    Attributes:
        known: those that were described before, by their identities.
        is_learning: whether they are to be known for a later key.
        found: those that this key met, of which that is so.
        handlers: what writes their instances, by their identities, for those of which that is known.
    """

    known: Mapping[int, KnownClass] = field(default_factory=dict)
    is_learning: bool = False
    found: dict[int, KnownClass] = field(default_factory=dict)
    handlers: Mapping[int, Handler] = field(default_factory=dict)

    def recall(self, cls: type, memory: Memory) -> ClassContent | None:
        """Returns what a class is, and teaches a describer what it would learn from it; None if that is not known."""
        known = self.known.get(id(cls))
        if known is None or not known.record.teach(memory):
            return None
        self.found[id(cls)] = known
        return known.content

    def learn(self, cls: type, content: ClassContent, record: Record | None) -> None:
        """Takes note of what a class is, if that does not depend on what was described before it."""
        if record is not None:
            self.found[id(cls)] = KnownClass(content, record)
