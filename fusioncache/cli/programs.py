"""The programs of a store, as the commands see them: what Thunder made of models, read without Thunder and torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.lookup import make_ambiguity_error
from fusioncache.cli.storage import is_expected, open_disk, read_entries, report_store_errors
from fusioncache.cli.terminal import ID_DIGITS, cut
from fusioncache.ir.key_text import read_key, read_values

if TYPE_CHECKING:
    from fusioncache.program.reads import Read
    from fusioncache.program.text import ProgramText, TraceText
    from fusioncache.store import Entry
    from fusioncache.store.disk import DiskStore
    from fusioncache.store.folders import EntryFile

TRACES = ("prologue", "forward", "backward", "epilogue")
"""The traces of a program, in the order in which they are shown."""

_ARGUMENTS = "arguments"
_PLACE = re.compile(r"(args|kwargs)\.([^.]+)")
_TENSOR = re.compile(r"[\w.#]+ torch\.(\w+) \(([\d, ]*)\) \([\d, ]*\) ([a-z]+(?::\d+)?)(?: requires_grad)?")
_LOOKED_AT = 1000
"""Characters of an input's description in which tensors are looked for."""
_LONGEST = 48
"""Characters of an input that are shown."""


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A program that a store has.

    Attributes:
        entry: of the store.
        file: of the entry.
        alone: whether no other program has its key.
        disk: where its artifacts are.
    """

    entry: Entry
    file: EntryFile
    alone: bool
    disk: DiskStore

    @property
    def id(self) -> str:
        """What people call it: the start of its key's digest, and its slot's number where the key has several."""
        number = "" if self.alone else f"-{_slot_number(self.entry.backend)}"
        return f"{self.entry.digest[:ID_DIGITS]}{number}"

    @property
    def name(self) -> str:
        """Class of the module, or name of the function."""
        return self.entry.name

    @property
    def seconds(self) -> float:
        """That deriving it took."""
        return self.entry.seconds

    @property
    def size(self) -> int:
        """Of its artifacts and of its entry, which has the whole text of the key, in bytes."""
        return self.file.size + sum(artifact.size for artifact in self.entry.artifacts)

    @property
    def used(self) -> float:
        """When it was last used, in seconds since the epoch."""
        return self.file.used / 1e9

    @property
    def texts(self) -> Mapping[str, str]:
        """The ingredients of its key, name to text; none if they are of another format."""
        try:
            return read_key(self.entry.text)
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
        from fusioncache.program.text import decode

        return self._decode("program", decode)

    def read_reads(self) -> Sequence[Read]:
        """Reads what its derivation read.

        Raises:
            click.ClickException: if that is damaged, or of another version.
        """
        from fusioncache.program.reads import decode_reads

        return self._decode("reads", decode_reads)

    def find_templates(self) -> Sequence[str] | None:
        """Returns the names of the templates that its traces call; None if they cannot be read."""
        try:
            return sorted(self.read_text().templates())
        except click.ClickException:
            return None

    def data(self) -> dict[str, Any]:
        """Returns what the commands' JSON says of it. ``created`` and ``used`` are in seconds since the epoch."""
        entry = self.entry
        about = {"id": self.id, "digest": entry.digest, "slot": entry.backend, "name": entry.name}
        origin = {"created": entry.created, "used": self.used, "seconds": entry.seconds, "pid": entry.pid}
        return {**about, **origin, "host": entry.host, "size": self.size, "inputs": self.inputs}

    def _decode(self, name: str, decode: Any) -> Any:
        from fusioncache.store.errors import Refusal

        try:
            (artifact,) = [artifact for artifact in self.entry.artifacts if artifact.name == name]
            return decode(self.disk.content(artifact))
        except (Refusal, ValueError, OSError) as error:
            raise click.ClickException(f"the {name} of {self.id} cannot be read: {error}") from error


def list_programs(directory: Path | None) -> tuple[Path, tuple[KeptProgram, ...]]:
    """Returns where the store is, and the programs in it, newest first.

    Raises:
        click.ClickException: if there is no store, or it cannot be used.
    """
    from fusioncache.store.slots import is_program

    with report_store_errors():
        disk = open_disk(directory)
        files = disk.entries.list_files()
        found = list(read_entries(disk, (id_ for id_ in files if is_program(id_.partition(".")[2]))))
    digests = Counter(entry.digest for entry in found)
    programs = (KeptProgram(entry, files[entry.id], digests[entry.digest] == 1, disk) for entry in found)
    return disk.directory.path, tuple(sorted(programs, key=lambda one: (-one.entry.created, one.entry.id)))


def find_programs(wanted: str, directory: Path | None) -> Sequence[KeptProgram]:
    """Returns the programs that may be meant: by the start of a digest or id, or of a name; none without a store."""
    if not wanted or not is_expected(directory):
        return ()
    _, programs = list_programs(directory)
    head, _, number = wanted.partition("-")
    found = [one for one in programs if one.entry.digest.startswith(head) and _has_number(one, number)]
    named = [one for one in programs if one.name == wanted] or [one for one in programs if one.name.startswith(wanted)]
    return found or named


def pick_program(wanted: str, directory: Path | None) -> KeptProgram:
    """Returns the one program that is meant.

    Raises:
        click.ClickException: if there is none, or several.
    """
    found = find_programs(wanted, directory)
    if not found:
        raise click.ClickException(
            f"no program in the store has an id or name that starts with {wanted!r}: see 'fusioncache ls --programs'"
        )
    return pick_one(wanted, found)


def pick_one(wanted: str, found: Sequence[KeptProgram]) -> KeptProgram:
    """Returns the only one of these programs.

    Raises:
        click.ClickException: if there are several.
    """
    if len(found) > 1:
        raise make_ambiguity_error(wanted, "programs", [f"{one.id}  {one.name}  {one.inputs}" for one in found])
    return found[0]


def select_traces(text: ProgramText) -> Mapping[str, TraceText]:
    """Returns the traces of a program by the names under which they are shown, without a backward that is not there."""
    traces = (text.prologue, text.computation, text.backward, text.epilogue)
    return {name: trace for name, trace in zip(TRACES, traces, strict=True) if trace is not None}


def join_sources(trace: TraceText) -> str:
    """Returns the source of a trace, after those of its parts that CUDA graphs capture."""
    from fusioncache.program.text import texts_of

    return "\n\n".join(text.source for text in texts_of(trace))


def format_inputs(arguments: str) -> str:
    """Returns the kind of each input, such as ``float32[2, 16] cuda:0, mask=None``.

    Args:
        arguments: the text of the ingredient that describes all of each.
    """
    found = []
    for place, text in read_values(arguments).items():
        named = _PLACE.fullmatch(place)
        if named:
            found.append(f"{named[2]}={_shorten(text)}" if named[1] == "kwargs" else _shorten(text))
    return ", ".join(found)


def _shorten(text: str) -> str:
    short = _TENSOR.sub(lambda tensor: f"{tensor[1]}[{tensor[2].rstrip(',')}] {tensor[3]}", text[:_LOOKED_AT])
    return cut(short, _LONGEST)


def _slot_number(slot: str) -> int:
    return int(slot.partition("-")[2] or 0)


def _has_number(program: KeptProgram, number: str) -> bool:
    return not number or str(_slot_number(program.entry.backend)) == number
