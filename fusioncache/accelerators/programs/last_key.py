"""The last key of a compiled function. The next key takes over the descriptions of its unchanged classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.epoch import Epoch, MapWriter
from fusioncache.accelerators.programs.key import program_key
from fusioncache.accelerators.programs.known_classes import KnownClass, KnownClasses
from fusioncache.ir import Key


@dataclass(slots=True)
class LastKey:
    """What is known of the last key of a compiled function.

    Models, options and the state are described for each key. Other functions have other classes, and a user's class is
    kept alive no longer than the function.

    Attributes:
        classes: those that it met, by their identities.
        made: how many keys were made.
        epoch: what is known of Thunder.
    """

    classes: Mapping[int, KnownClass] = field(default_factory=dict)
    made: int = 0
    epoch: Epoch = field(default_factory=Epoch)

    def make_next(self, compile_data: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Key, Definitions]:
        """Returns the key of the program for these arguments, and what named the values that it depends on.

        Args:
            compile_data: as in ``program_key``.
            args: as in ``program_key``.
            kwargs: as in ``program_key``.

        Raises:
            Declined: as ``program_key`` does.
        """
        epoch, executors = self.epoch, compile_data.executors_list
        known_map = epoch.find_map(executors)
        known = {**(known_map.classes if known_map else {}), **self.classes}
        # A second key shows that more are to come.
        learns_classes, learns_map = self.made > 0, epoch.made > 0
        self.made, epoch.made = self.made + 1, epoch.made + 1
        classes = KnownClasses(known, learns_classes or (learns_map and known_map is None))
        definitions = Definitions(Describer(known=classes), epoch.names)
        writer = MapWriter(known_map, classes, learns_map)
        key = program_key(definitions, compile_data, args, kwargs, writer.write)
        definitions.describer.end_key()
        epoch.learn_map(executors, writer.found)
        self.classes = classes.found if learns_classes else {}
        return key, definitions
