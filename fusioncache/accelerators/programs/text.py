"""A program as data: the Python of its four traces, as Thunder prints it, and what the names in it refer to.

What is stored is JSON::

    program = { format, prologue, computation, backward, epilogue: trace; returns_none_for_gradients: truth value }
    trace   = { name, source: text; context: { name: reference } }      backward may be null

That every byte is as it was written is what the store sees to.

A source is Python that will be run, so that whoever may write into a store may run code in the processes that read it,
as with the code of templates. What ``source.py`` and ``references.py`` check guards against mistakes, not against them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fusioncache.accelerators.programs.references import (
    CudaGraphReference,
    TemplateReference,
    TraceText,
    decode_trace,
    encode_trace,
)
from fusioncache.ir import strict_json

FORMAT = 5


@dataclass(frozen=True, slots=True)
class ProgramText:
    """What Thunder makes of a model for one kind of input.

    Attributes:
        prologue: checks whether the inputs are of this kind, and takes what is needed out of them and the model.
        computation: the forward pass.
        backward: None if no gradient is wanted.
        epilogue: writes back what the model changed of itself.
        returns_none_for_gradients: whether gradients go another way, as in FSDP without synchronization.
    """

    prologue: TraceText
    computation: TraceText
    backward: TraceText | None
    epilogue: TraceText
    returns_none_for_gradients: bool = False

    def traces(self) -> Iterator[TraceText]:
        """Yields the traces that there are, in the order in which they run."""
        yield from filter(None, (self.prologue, self.computation, self.epilogue, self.backward))

    def texts(self) -> Iterator[TraceText]:
        """Yields all texts of a program: the traces, and before each those of its parts that are captured."""
        for trace in self.traces():
            yield from texts_of(trace)

    def map_traces(self, new: Callable[[TraceText], TraceText]) -> ProgramText:
        """Returns a program with other traces, for which it asks in the order in which they run."""
        prologue, computation, epilogue = map(new, (self.prologue, self.computation, self.epilogue))
        backward = None if self.backward is None else new(self.backward)
        return ProgramText(prologue, computation, backward, epilogue, self.returns_none_for_gradients)

    def templates(self) -> dict[str, TemplateReference]:
        """Returns the templates that the traces call, by the names of the calls."""
        named = (item for trace in self.texts() for item in trace.context.items())
        return {name: reference for name, reference in named if isinstance(reference, TemplateReference)}


def texts_of(trace: TraceText) -> Iterator[TraceText]:
    """Yields the texts of a trace: those of its parts that are captured, and its own last."""
    for reference in trace.context.values():
        if isinstance(reference, CudaGraphReference):
            yield from texts_of(reference.trace)
    yield trace


def encode(program: ProgramText) -> bytes:
    """Writes a program. Equal programs have equal bytes."""
    return strict_json.encode(
        {
            "format": FORMAT,
            "prologue": encode_trace(program.prologue),
            "computation": encode_trace(program.computation),
            "backward": None if program.backward is None else encode_trace(program.backward),
            "epilogue": encode_trace(program.epilogue),
            "returns_none_for_gradients": program.returns_none_for_gradients,
        }
    )


def decode(content: bytes) -> ProgramText:
    """Reads the program that was encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    prologue, computation, backward, epilogue, returns_none = strict_json.decode(
        content, "program", format=FORMAT
    ).fields("prologue", "computation", "backward", "epilogue", "returns_none_for_gradients")
    return ProgramText(
        decode_trace(prologue),
        decode_trace(computation),
        None if backward.content is None else decode_trace(backward),
        decode_trace(epilogue),
        returns_none.boolean(),
    )
