"""What ``thunder.jit`` is given for a model: traced as often as one likes, and never run.

By the way through Dynamo that are the parts of its graphs that Thunder takes. Dynamo sees the model once; the parts
themselves then run without Thunder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import thunder
import torch

from benchmarks.trace_equality.texts import read_texts
from benchmarks.zoo import Workload


@dataclass(frozen=True, slots=True)
class Piece:
    """A module, the options of ``thunder.jit`` for it, and inputs."""

    module: torch.nn.Module
    options: Mapping[str, Any]
    inputs: tuple[Any, ...]

    def trace(self) -> dict[str, str]:
        """Lets Thunder trace it anew and make it executable; returns the text of every trace by name."""
        compiled = thunder.jit(self.module, **self.options)
        thunder.compile_data(compiled).get_computation_and_inputs(*self.inputs)
        return read_texts(compiled)


class Recorder(torch.nn.Module):
    """Stands in for a module that Thunder compiled: runs the module as it is, and notes what it was called with."""

    def __init__(self, module: torch.nn.Module, options: Mapping[str, Any], pieces: list[Piece]):
        super().__init__()
        self._run, self._options, self._pieces = [module], options, pieces  # in a list it is no submodule

    def forward(self, *inputs: Any) -> Any:
        """Runs the module."""
        self._pieces.append(Piece(self._run[0], self._options, inputs))
        return self._run[0](*inputs)


def find_pieces(workload: Workload, executors: Sequence[Any]) -> list[Piece]:
    """Returns what Thunder gets to trace of a model."""
    if workload.way == "jit":
        return [Piece(workload.model, {"executors": list(executors)}, workload.inputs)]
    pieces: list[Piece] = []
    torch.compiler.reset()  # Dynamo counts all models that go through one forward function, and stops at 8
    with mock.patch.object(thunder, "jit", lambda module, **options: Recorder(module, options, pieces)):
        workload.compile(executors)(*workload.inputs)
    return pieces
