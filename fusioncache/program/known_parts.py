"""The parts of a key that lasted from one call of a function to the next, and need not be written again.

Between two calls next to nothing changes but arguments. The model, the options and the state are read anew each time,
and nothing of them is kept alive. What takes longest is remembered, as it is seen in little time that all of it is as
it was: what each class is by itself that was met (``known_classes.py``), and the function map (``known_map.py``). What
a describer learned when these were written it is taught (``records.py``), so that it goes on as if it had written them.
Where one thing that was looked at is another one (``watched_objects.py``), all of it is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any

from fusioncache.ir import Key
from fusioncache.program.class_lines import ClassLines, ClassWriter
from fusioncache.program.definitions import Definitions
from fusioncache.program.describe import Describer
from fusioncache.program.key import Writers, program_key
from fusioncache.program.known_classes import KnownClass, KnownClasses
from fusioncache.program.known_map import KnownMap, MapWriter
from fusioncache.program.records import Record
from fusioncache.program.watched_names import WatchedNames
from fusioncache.program.watched_objects import WatchedObjects, can_be_watched
from fusioncache.program.writer import Handler

logger = logging.getLogger("fusioncache")

_PATIENCE = 4
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

    def may_learn_map(self, names: WatchedNames | None) -> bool:
        """Tells whether the function map may be known with these names where it was not with those before."""
        return self.map is not None or self.names is None or names is None or names.snapshot is not self.names.snapshot


def _is_watched(record: Record, known: Mapping[int, KnownClass]) -> bool:
    """Tells whether all is watched that a text depends on, with the classes of which it has the digests."""
    waiting, reached = [each for each, _ in record.classes.values()], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) not in known:
            return False
        if id(found) not in reached:
            reached.add(id(found))
            waiting += known[id(found)].content.classes
    return can_be_watched(record.met)


@dataclass(slots=True)
class LastKey:
    """What is known of the key of a compiled function that was made last.

    Attributes:
        parts: those that may be the same in the next one; None if nothing is known.
        made: how many keys were made.
        vain: for how many in a row something had changed.
        lines: of its classes; None if they are not known.
    """

    parts: KnownParts | None = None
    made: int = 0
    vain: int = 0
    lines: ClassLines | None = None

    def make_next(
        self, names: WatchedNames | None, compile_data: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Key, Definitions]:
        """Returns the key of the program for these arguments, and what named the values that it depends on.

        Args:
            names: that may be taken over; None if there are none.
            compile_data: as in ``program_key``.
            args: as in ``program_key``.
            kwargs: as in ``program_key``.

        Raises:
            NotKept: as ``program_key`` does.
        """
        # Of two threads one has it.
        before, self.parts = self.parts, None
        parts = before if before is not None and before.objects.hold() else None
        # Where only one program is loaded, nobody asks again. Where something changes each time, it is asked in vain.
        is_learning = self.made > 0 and self.vain < _PATIENCE
        self.made += 1
        classes = KnownClasses(parts.classes if parts else {}, is_learning, handlers=parts.handlers if parts else {})
        definitions = Definitions(Describer(known=classes), names)
        earlier = definitions.earlier
        writer = MapWriter(parts.map if parts else None, is_learning and (not parts or parts.may_learn_map(earlier)))
        lines = ClassWriter(self.lines)
        key = program_key(definitions, compile_data, args, kwargs, Writers(writer.write, lines.write))
        definitions.describer.end_key()
        self.lines = lines.last if self.made > 1 else None
        if parts is not None and writer.found is parts.map:
            self.parts, self.vain = parts, 0
        elif is_learning:
            self.vain += before is not None
            handlers = definitions.describer.list_handlers()
            self.parts = KnownParts.take(classes.found, writer.found, earlier, handlers) if earlier else None
        return key, definitions
