"""The last key of a compiled function. The next key takes over its unchanged parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusioncache.ir import Key
from fusioncache.program.class_lines import ClassLines, ClassWriter
from fusioncache.program.definitions import Definitions
from fusioncache.program.describe import Describer
from fusioncache.program.key import Writers, program_key
from fusioncache.program.known_classes import KnownClasses
from fusioncache.program.known_map import MapWriter
from fusioncache.program.known_parts import PATIENCE, KnownParts
from fusioncache.program.shared_map import SharedMap
from fusioncache.program.watched_names import WatchedNames


@dataclass(slots=True)
class LastKey:
    """The known parts of the last key of a compiled function.

    Attributes:
        parts: those that may be the same in the next one; None if nothing is known.
        made: how many keys were made.
        vain: for how many in a row something had changed.
        lines: of its classes; None if they are not known.
        shared: what is known to other functions as well; by default nothing.
    """

    parts: KnownParts | None = None
    made: int = 0
    vain: int = 0
    lines: ClassLines | None = None
    shared: SharedMap = field(default_factory=SharedMap)

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
            Declined: as ``program_key`` does.
        """
        shared = self.shared
        # Of two threads one has it.
        before, self.parts = self.parts, None
        own = before if before is not None and before.objects.hold() else None
        borrowed = shared.borrow(compile_data.executors_list) if own is None else None
        parts = borrowed if borrowed is not None and borrowed.objects.hold() else own
        # A second key shows that more are to come. Where something changes each time, learning is in vain.
        is_learning, learns_map = self.made > 0 and self.vain < PATIENCE, parts is None and shared.learns()
        self.made, shared.made = self.made + 1, shared.made + 1
        handlers = parts.handlers if parts else {}
        classes = KnownClasses(parts.classes if parts else {}, is_learning or learns_map, handlers=handlers)
        definitions = Definitions(Describer(known=classes), names)
        earlier = definitions.earlier
        may_learn = (is_learning and (not parts or parts.may_learn_map(earlier))) or learns_map
        writer = MapWriter(parts.map if parts else None, may_learn)
        lines = ClassWriter(self.lines)
        key = program_key(definitions, compile_data, args, kwargs, Writers(writer.write, lines.write))
        definitions.describer.end_key()
        self.lines = lines.last if self.made > 1 else None
        if borrowed is not None and writer.found is borrowed.map:
            shared.give_back(borrowed)
        elif own is None:
            shared.vain += borrowed is not None
            shared.learn(writer.found, classes, earlier)
        if own is not None and writer.found is own.map:
            self.parts, self.vain = own, 0
        elif is_learning:
            self.vain += before is not None
            handlers = definitions.describer.list_handlers()
            self.parts = KnownParts.take(classes.found, writer.found, earlier, handlers) if earlier else None
        return key, definitions
