"""The programs of a store, as the commands see them: what Thunder made of models, read without Thunder and torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.kept_entries import KeptEntry, list_entries
from fusioncache.cli.terminal import cut
from fusioncache.ir.key_text import read_key, read_values
from fusioncache.process.secrets import blur

if TYPE_CHECKING:
    from fusioncache.accelerators.programs.reads import Read
    from fusioncache.accelerators.programs.text import ProgramText, TraceText

TRACES = ("prologue", "forward", "backward", "epilogue")
"""The traces of a program, in the order in which they are shown."""

_ARGUMENTS = "arguments"
_PLACE = re.compile(r"(args|kwargs)\.([^.]+)")
_TENSOR = re.compile(
    r"[\w.#]+ torch\.(\w+) \(([\d, ]*)\) \([\d, ]*\) ([a-z]+(?::\d+)?)"
    r"(?: requires_grad)?(?: computed)?(?: attributes \{(?:[^{}]|\{[^{}]*\})*(?:\}|$))?"
)
_LOOKED_AT = 1000
"""Characters of an input's description in which tensors are looked for."""
_LONGEST = 48
"""Characters of an input that are shown."""


@dataclass(frozen=True, slots=True)
class KeptProgram(KeptEntry):
    """A program that a store has."""

    @property
    def texts(self) -> Mapping[str, str]:
        """The ingredients of its key, name to text; none if they are of another format."""
        from fusioncache.store.entry import is_outdated

        try:
            return {} if is_outdated(self.entry.text) else read_key(self.entry.text)
        except ValueError:
            return {}

    @property
    def inputs(self) -> str:
        """The kinds of its inputs, in short."""
        return format_inputs(self.texts.get(_ARGUMENTS, ""))

    def read_text(self) -> ProgramText:
        """Reads its traces.

        Raises:
            click.ClickException: if they are damaged, or of another version.
        """
        from fusioncache.accelerators.programs.text import decode

        return self.decode("program", decode)  # type: ignore[no-any-return]

    def read_reads(self) -> Sequence[Read]:
        """Reads what its derivation read.

        Raises:
            click.ClickException: if that is damaged, or of another version.
        """
        from fusioncache.accelerators.programs.reads import decode_reads

        return self.decode("reads", decode_reads)  # type: ignore[no-any-return]

    def find_templates(self) -> Sequence[str] | None:
        """Returns the names of the templates that its traces call; None if they cannot be read."""
        try:
            return sorted(self.read_text().templates())
        except click.ClickException:
            return None

    def data(self) -> dict[str, Any]:
        """Returns what the commands' JSON says of it."""
        return {**self.origin(), "inputs": self.inputs}


def list_programs(directory: Path | None) -> tuple[Path, tuple[KeptProgram, ...]]:
    """Returns where the store is, and the programs in it, newest first.

    Raises:
        click.ClickException: if there is no store, or it cannot be used.
    """
    from fusioncache.store.entry import is_program

    return list_entries(directory, KeptProgram, is_program)


def select_traces(text: ProgramText) -> Mapping[str, TraceText]:
    """Returns the traces of a program by the names under which they are shown, without a backward that is not there."""
    traces = (text.prologue, text.computation, text.backward, text.epilogue)
    return {name: trace for name, trace in zip(TRACES, traces, strict=True) if trace is not None}


def join_sources(trace: TraceText) -> str:
    """Returns the source of a trace, after those of its parts that CUDA graphs capture."""
    from fusioncache.accelerators.programs.text import texts_of

    return "\n\n".join(text.source for text in texts_of(trace))


def format_inputs(arguments: str) -> str:
    """Returns the kind of each input, such as ``float32[2, 16] cuda:0, mask=None``.

    Args:
        arguments: the text of the ingredient that describes all of each.
    """
    found = []
    for place, text in read_values(blur(arguments)).items():
        named = _PLACE.fullmatch(place)
        if named:
            found.append(f"{named[2]}={_shorten(text)}" if named[1] == "kwargs" else _shorten(text))
    return ", ".join(found)


def _shorten(text: str) -> str:
    short = _TENSOR.sub(lambda tensor: f"{tensor[1]}[{tensor[2].rstrip(',')}] {tensor[3]}", text[:_LOOKED_AT])
    return cut(short, _LONGEST)
