"""Who called a graph first, which is known before it is written out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from fusioncache.cache.executable import Executable
from fusioncache.ir import Instance
from fusioncache.process.lru import LruMap


@dataclass(slots=True)
class FirstCall:
    """The first call of a graph without parameters under the settings of one environment.

    Attributes:
        instance: the region whose call it was, if that is known.
        executable: of the graph; None as long as something for any sizes has served all calls.
    """

    instance: Instance | None
    executable: Executable | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether there is a function for its own sizes."""
        return self.executable is not None and self.executable.is_built


class FirstCalls:
    """The first calls of graphs.

    Args:
        capacity: how many are remembered. Least recently used leaves first.
    """

    def __init__(self, capacity: int):
        self._calls: LruMap[Hashable, FirstCall] = LruMap(capacity)

    def find(self, graph: Hashable, environment: Mapping[str, str], instance: Instance | None) -> FirstCall:
        """Returns the first call of a graph, which is this one if there was none before.

        Args:
            graph: stands for it. Where this is equal, the graphs are.
            environment: of the backend, at this moment.
            instance: the region that calls it now.
        """
        return self._calls.get_or_make((graph, *sorted(environment.items())), lambda: FirstCall(instance))[0]

    def clear(self) -> None:
        """Forgets all of them."""
        self._calls.clear()
