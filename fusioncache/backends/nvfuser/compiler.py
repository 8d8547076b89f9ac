"""What is asked of nvFuser: functions, with what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fusioncache.backends.api import Run
from fusioncache.ir import Graph


@dataclass(frozen=True, slots=True)
class CompiledDefinition:
    """What nvFuser compiled.

    Attributes:
        run: takes the arguments as one sequence and returns the outputs.
        definition: nvFuser's ``FusionDefinition``, which was executed.
        device: that it was written for; None if it runs where its arguments are.
    """

    run: Run
    definition: Any
    device: int | None


class Compiler(Protocol):
    """nvFuser, as ``backends/nvfuser/backend.py`` has it."""

    @property
    def switches(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The options that are on, and those that are off."""

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """A function for arguments of this layout."""

    def compiled(self, graph: Graph, args: Sequence[Any], enable: Sequence[str] = ()) -> CompiledDefinition:
        """The same, compiled with these options on as well."""
