"""The function map of this process: described once, and used for the keys of all compiled functions.

``thunderfx`` compiles a model in a dozen parts, each of which is a compiled function with one program. So what is known
of Thunder belongs to the process. Each key compares it with what is there now before it takes any of it over: see
``known_parts.py``. Once a process has made a key, its names are taken note of; the next key adds the function map.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from fusioncache.program.definitions import Definitions
from fusioncache.program.function_map import list_names
from fusioncache.program.known_classes import KnownClasses
from fusioncache.program.known_map import KnownMap
from fusioncache.program.known_parts import PATIENCE, KnownParts
from fusioncache.program.watched_names import WatchedNames

_MOST = 8
"""For how many lists of modules a function map is held. Executors bring modules of their own."""


@dataclass(slots=True, eq=False)
class SharedMap:
    """The known descriptions of Thunder's functions.

    Attributes:
        names: of Thunder's functions, and what they were made of; None if they are not watched.
        maps: the function map for each list of modules, the last one learned at the end.
        made: how many keys were made.
        compiled: how many modules were compiled, which have a key each.
        vain: for how many of these in a row the function map had changed.
    """

    names: WatchedNames | None = None
    maps: list[KnownParts] = field(default_factory=list)
    made: int = 0
    compiled: int = 0
    vain: int = 0

    def borrow(self, executors: Iterable[object]) -> KnownParts | None:
        """Returns the function map for these executors, which the caller gives back; None if there is none.

        Of several threads one gets it: it is compared, and the others write their keys without it.
        """
        modules = tuple(list_names(executors))
        for parts in tuple(self.maps):
            if parts.map is not None and parts.map.modules == modules:
                try:
                    self.maps.remove(parts)
                except ValueError:  # another thread has it
                    continue
                return parts
        return None

    def give_back(self, parts: KnownParts) -> None:
        """Takes a function map back that nothing of had changed."""
        self.vain = 0
        self._add(parts)

    def learns(self) -> bool:
        """True if the function map of the next key is to be remembered."""
        return self.made > 0 and self.vain < PATIENCE

    def learn(self, found: KnownMap | None, classes: KnownClasses, names: WatchedNames | None) -> None:
        """Takes note of the function map that was written for a key.

        Args:
            found: it; None if it could not be known.
            classes: those that the key met.
            names: that were taken over for it.
        """
        parts = KnownParts.take_map(classes.found, found, names) if found and names else None
        if parts is not None:
            self._add(parts)
        elif names is not None:
            self.vain += 1

    def watch(self, definitions: Definitions) -> None:
        """Takes note of what the names of a key were made of, so that they serve the next one."""
        self.names = definitions.watch()

    def expects_more(self) -> bool:
        """True if another key is to come. A process that loads one program makes one key."""
        return self.made > 1 or self.compiled > 1

    def _add(self, parts: KnownParts) -> None:
        self.maps.append(parts)
        del self.maps[:-_MOST]


@cache
def shared_map_of_process() -> SharedMap:
    """Returns the function map of this process, the same each time."""
    return SharedMap()
