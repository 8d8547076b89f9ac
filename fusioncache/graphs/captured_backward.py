"""A backward program as it was captured, after the forward program that saved what it takes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from fusioncache.graphs.buffers import make_buffer
from fusioncache.graphs.memory import GraphMemory
from fusioncache.graphs.promises import Promise
from fusioncache.graphs.results import Arguments, Results
from fusioncache.graphs.structure import Build, take_apart

BackwardFunction = Callable[[list[Any], list[Any]], Any]
"""Takes what the forward program saved, tensors and others, and the gradients of its outputs. It empties both lists."""


class CapturedBackward:
    """A backward program as it was captured after one forward program.

    What that saved lies where it was captured, and goes to this capture as memory as soon as it is used up. Gradients
    of outputs are copied in, those of inputs are copied out: autograd keeps or adds to what it is given.

    Args:
        function: the program.
        promise: of the forward program.
        others: what it saved besides tensors.
        given: the saved tensors and the gradients of this call. It is not run.
        kind: of the gradients.
        memory: of the device.

    Attributes:
        kind: the same.

    Raises:
        NotCaptured: if it cannot be.
        Exception: whatever goes wrong in the capture.
    """

    def __init__(
        self,
        function: BackwardFunction,
        promise: Promise,
        others: Sequence[Any],
        given: tuple[Sequence[Any], Sequence[Any]],
        kind: Hashable,
        memory: GraphMemory,
    ):
        self.kind = kind
        saved, gradients = given
        self._safe = memory.list_promised()
        self._memory = memory
        self._copied = tuple(make_buffer(gradient) for gradient in gradients)
        inside = promise.captured.take_saved()
        outside = [(place, inside[place]) for place in promise.captured.saved_outside]
        outside += [(len(saved) + place, buffer.tensor) for place, buffer in enumerate(self._copied)]
        inside += [buffer.tensor for buffer in self._copied]
        builds: list[Build] = []
        count = len(saved)

        def record(arguments: list[Any]) -> list[Any]:
            tensors, cotangents = arguments[:count], arguments[count:]
            arguments.clear()
            leaves, build = take_apart(function([tensors, tuple(others)], cotangents))
            builds.append(build)
            return leaves

        recording = memory.recorder.record(record, inside)
        self._replay, self._build = recording.replay, builds[-1]
        self._results = Results(recording.results, Arguments(outside), (), memory.recorder.device)
        recording.results.clear()

    def is_free(self) -> bool:
        """Tells whether it may be replayed now, for all that is promised in the memory."""
        return self._memory.allows(self._safe)

    def run(self, saved: Sequence[Any], gradients: Sequence[Any]) -> Any:
        """Replays it for a call, and returns the gradients of the inputs."""
        import torch

        with torch.no_grad():
            for buffer, gradient in zip(self._copied, gradients, strict=True):
                buffer.fill(gradient)
            self._replay()
            return self._build(self._results.give([*saved, *gradients]))
