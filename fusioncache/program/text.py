"""A program as data: the Python of its four traces, as Thunder prints it, and what the names in it refer to.

What is stored starts with a line that says the format and the SHA-256 of the rest, which is JSON::

    content = "fusioncache program " format " " sha256-of-body LF body
    body    = { prologue, computation, backward, epilogue: trace; returns_none_for_gradients: truth value }
    trace   = { name, source: text; context: { name: reference } }      backward may be null

A source consists of imports of reviewed packages, decorators and one function. It is Python that will be run, so that
whoever may write into a store may run code in the processes that read it: ``docs/store.md`` says whom to trust.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusioncache.ir import strict_json
from fusioncache.ir.strict_json import Value, is_text
from fusioncache.program.references import (
    Reference,
    TemplateReference,
    decode_reference,
    encode_reference,
    is_reviewed,
)

FORMAT = 1

_HEADER = re.compile(rb"fusioncache program (\d{1,9}) ([0-9a-f]{64})\n")
_NAME = re.compile(r"[^\W\d]\w*")
_IMPORT = re.compile(r"import ([\w.]+)(?: as \w+)?|from ([\w.]+) import \w+")
_DECORATORS = frozenset({"@torch.no_grad()", "@no_autocast"})


@dataclass(frozen=True, slots=True)
class TraceText:
    """One trace.

    Attributes:
        name: of its function.
        source: Python as Thunder prints it.
        context: what the names in it refer to, but for those that it imports and those that each prologue has.
    """

    name: str
    source: str
    context: Mapping[str, Reference] = field(default_factory=dict)


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

    def templates(self) -> dict[str, TemplateReference]:
        """Returns the templates that the traces call, by the names of the calls."""
        named = (item for trace in self.traces() for item in trace.context.items())
        return {name: reference for name, reference in named if isinstance(reference, TemplateReference)}


def encode(program: ProgramText) -> bytes:
    """Writes a program. Equal programs have equal bytes."""
    body = strict_json.encode(
        {
            "prologue": _encode_trace(program.prologue),
            "computation": _encode_trace(program.computation),
            "backward": None if program.backward is None else _encode_trace(program.backward),
            "epilogue": _encode_trace(program.epilogue),
            "returns_none_for_gradients": program.returns_none_for_gradients,
        }
    )
    return b"fusioncache program %d %s\n%s" % (FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


def decode(content: bytes) -> ProgramText:
    """Reads the program that was encoded.

    Raises:
        ValueError: if the content is anything else, was damaged, or is of another format.
    """
    header = _HEADER.match(content)
    if header is None:
        raise ValueError("no program")
    if int(header[1]) != FORMAT:
        raise ValueError(f"a program of format {int(header[1])}, not {FORMAT}")
    body = content[header.end() :]
    if hashlib.sha256(body).hexdigest().encode() != header[2]:
        raise ValueError("a damaged program")
    prologue, computation, backward, epilogue, returns_none = strict_json.decode(body, "program").fields(
        "prologue", "computation", "backward", "epilogue", "returns_none_for_gradients"
    )
    return ProgramText(
        _decode_trace(prologue),
        _decode_trace(computation),
        None if backward.content is None else _decode_trace(backward),
        _decode_trace(epilogue),
        returns_none.boolean(),
    )


def check_trace(trace: TraceText) -> None:
    """Checks that a source is one function, and imports reviewed packages only.

    Raises:
        ValueError: if it is anything else. The error says what.
    """
    if not is_text(trace.source):
        raise ValueError("has a text that is not Unicode")
    head, found, body = f"\n{trace.source}".partition(f"\ndef {trace.name}(")
    if not found:
        raise ValueError(f"has no function {trace.name}")
    for line in head.split("\n"):
        _check_head(line)
    signature, _, statements = body.partition("\n")
    inside = all(line.startswith("  ") or not line for line in statements.split("\n"))
    if not signature.endswith("):") or not statements or not inside:
        raise ValueError(f"has something else than the function {trace.name}")


def _check_head(line: str) -> None:
    imported = _IMPORT.fullmatch(line)
    if imported is None:
        if line and not line.startswith("#") and line not in _DECORATORS:
            raise ValueError(f"has the line {line!r} before its function")
    elif not is_reviewed(imported[1] or imported[2]):
        raise ValueError(f"imports {imported[1] or imported[2]}, which stored programs may not use")


def _encode_trace(trace: TraceText) -> dict[str, Any]:
    context = {name: encode_reference(reference) for name, reference in sorted(trace.context.items())}
    return {"name": trace.name, "source": trace.source, "context": context}


def _decode_trace(value: Value) -> TraceText:
    name, source, context = value.fields("name", "source", "context")
    if not isinstance(context.content, dict) or not all(map(_NAME.fullmatch, context.content)):
        raise context.error("an object with names as fields")
    references = {
        key: decode_reference(Value(f"{context.name}.{key}", content)) for key, content in context.content.items()
    }
    trace = TraceText(name.text(_NAME), source.text(), references)
    try:
        check_trace(trace)
    except ValueError as error:
        raise ValueError(f"{value.name} {error}") from error
    return trace
