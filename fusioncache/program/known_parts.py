"""The parts of a key that lasted from one call to the next, and need not be written again.

Between two calls next to nothing changes but arguments. The model, the options and the state are read anew each time,
and nothing of them is kept alive. What takes longest is remembered, as it is seen in little time that all of it is as
it was: what each class is by itself that was met (``known_classes.py``), and the function map (``known_map.py``). What
a describer learned when these were written it is taught (``records.py``), so that it goes on as if it had written them.
Where one thing that was looked at is another one (``watched_objects.py``), all of it is written again.

Classes are known to one compiled function: another one has others, and a user's class is kept alive no longer than the
function. The function map is Thunder's and is known to all functions of the process (``shared_map.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from fusioncache.program.known_classes import KnownClass
from fusioncache.program.known_map import KnownMap
from fusioncache.program.records import Record
from fusioncache.program.watched_names import WatchedNames
from fusioncache.program.watched_objects import WatchedObjects, can_be_watched
from fusioncache.program.writer import Handler

logger = logging.getLogger("fusioncache")

PATIENCE = 4
"""How many keys in a row something may have changed for until nothing is remembered any more."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownParts:
    """What is known of the keys of one compiled function.

    Attributes:
        classes: by their identity.
        map: the function map; None if it cannot be known.
        names: that were taken over for it.
        objects: all that was looked at for these.
        handlers: what writes the instances of some of these classes, which follows from what they and those that they
            are derived from are.
    """

    classes: Mapping[int, KnownClass]
    map: KnownMap | None
    names: WatchedNames | None
    objects: WatchedObjects
    handlers: Mapping[int, Handler] = field(default_factory=dict)

    @classmethod
    def take(
        cls,
        classes: Mapping[int, KnownClass],
        known_map: KnownMap | None,
        names: WatchedNames | None = None,
        handlers: Mapping[int, Handler] = MappingProxyType({}),
    ) -> KnownParts | None:
        """Returns what is known now; None if that could not be compared with what there will be.

        Args:
            classes: what was learned from each.
            known_map: what was learned from the function map, if it was.
            names: that were taken over for it.
            handlers: what writes instances, by the identities of their classes.
        """
        known = {identity: each for identity, each in classes.items() if can_be_watched(each.record.met)}
        if known_map is not None and not _is_watched(known_map.record, known):
            known_map = None
        records = [*(each.record for each in known.values()), *([known_map.record] if known_map else [])]
        met = chain.from_iterable(each.met for each in records)
        named = {key: each for record in records for key, (each, _) in record.classes.items()}
        try:
            objects = WatchedObjects(met, named.values())
            return cls(known, known_map, names, objects, {key: each for key, each in handlers.items() if key in known})
        except Exception:
            logger.info("classes and the function map are described anew for each key", exc_info=True)
            return None

    @classmethod
    def take_map(cls, found: Mapping[int, KnownClass], known_map: KnownMap, names: WatchedNames) -> KnownParts | None:
        """Returns the function map alone, with the classes that its text depends on; None if it cannot be compared.

        Args:
            found: what was learned from each class, by the identities of these.
            known_map: what was learned from the function map.
            names: that were taken over for it.
        """
        reached = _find_classes(known_map.record, found)
        if reached is None:
            return None
        parts = cls.take({identity: found[identity] for identity in reached}, known_map, names)
        return parts if parts is not None and parts.map is not None else None

    def may_learn_map(self, names: WatchedNames | None) -> bool:
        """Tells whether the function map may be known with these names where it was not with those before."""
        return self.map is not None or self.names is None or names is None or names.snapshot is not self.names.snapshot


def _is_watched(record: Record, known: Mapping[int, KnownClass]) -> bool:
    """Tells whether all is watched that a text depends on, with the classes of which it has the digests."""
    return _find_classes(record, known) is not None and can_be_watched(record.met)


def _find_classes(record: Record, known: Mapping[int, KnownClass]) -> set[int] | None:
    """Returns the identities of the classes of which a text has the digests; None if one of them is not known."""
    waiting, reached = [each for each, _ in record.classes.values()], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) not in known:
            return None
        if id(found) not in reached:
            reached.add(id(found))
            waiting += known[id(found)].content.classes
    return reached
