"""The things that IDs name: runs and templates of the record; executables, programs and families of the store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import click

from fusioncache.cli.console import ID_DIGITS, cut, say
from fusioncache.humanize import escape_controls, format_bytes, format_count
from fusioncache.ir.keys import read_values
from fusioncache.observe.explain.changes import join_words
from fusioncache.observe.explain.difference import Varying, find_relatives
from fusioncache.observe.record.database import RecordError, RecordReader, has_record
from fusioncache.observe.record.observations import RegionRecord, Run
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.process.secrets import blur
from fusioncache.store import Entry, Store, StoreError, SweepResult, default_path
from fusioncache.store.directory import Directory, EntryFile, EntryFolder, ObjectFolder, open_directory
from fusioncache.store.disk import Audit, DiskStore
from fusioncache.store.entry import REFUSED, is_compiled, is_family, is_program
from fusioncache.store.files import Refusal
from fusioncache.store.store import MAX_AGE, MAX_BYTES
from fusioncache.template.text import count_ops

if TYPE_CHECKING:
    from fusioncache.accelerators.programs.text import ProgramText, Read
    from fusioncache.store.packs import PackResult

type StoredKind = Literal["executable", "program", "family"]
type ProgramSizes = Mapping[int | str, tuple[int, ...]]
"""The sizes of a program's arguments, by their places: a position, or a name."""

TRACES = ("prologue", "forward", "backward", "epilogue")
"""The traces of a program, in the order in which they are shown."""
_PLACE = re.compile(r"(args|kwargs)\.([^.]+)")
_TENSOR = re.compile(
    r"[\w.#]+ torch\.(\w+) \(([\d, ]*)\) \([\d, ]*\) ([a-z]+(?::\d+)?)"
    r"(?: requires_grad)?(?: computed)?(?: attributes \{(?:[^{}]|\{[^{}]*\})*(?:\}|$))?"
)
_LOOKED_AT = 1000
"""How many characters of an input's description are searched for tensors."""
_LONGEST = 48
"""How many characters of an input are shown."""


def is_expected(directory: Path | None) -> bool:
    """True if there should be a store: one was named, or the default directory exists."""
    return directory is not None or default_path().exists()


def open_existing(directory: Path | None) -> Directory:
    """Opens the directory of an existing store.

    Raises:
        StoreError: if it does not exist, or it cannot be used.
    """
    path = directory or default_path()
    if not path.exists():
        raise StoreError(
            f"there is no store in {path}: run a model with fusioncache first (the "
            "eager backend stores no executables), or copy a store with 'fusioncache pull URL'"
        )
    if path.is_dir() and not any(path.iterdir()):
        # Opening it would make it a store.
        raise StoreError(f"{path} is empty, and no store: run a model with fusioncache first, or check the path")
    return open_directory(path)


def open_store(directory: Path | None, *, make: bool) -> Store:
    """Opens the store in a directory.

    Raises:
        StoreError: if it does not exist and ``make`` is False, or it cannot be used.
    """
    # Both raise an error where Store.open would go on in memory.
    found = open_directory(directory or default_path()) if make else open_existing(directory)
    return Store.open(found.path, remote="")


def measure_store(directory: Path | None = None) -> dict[str, Any] | None:
    """Returns the path of a store, its counts and its bytes; None if there is no readable store.

    Args:
        directory: the directory of the store; None for the default one.
    """
    try:
        path = open_existing(directory).path
        entries, objects = EntryFolder(path / "entries").list_files(), ObjectFolder(path / "objects").sizes()
    except (StoreError, OSError):
        return None
    words = [id_.partition(".")[2] for id_ in entries]
    counts = {"executables": sum(map(is_compiled, words)), "programs": sum(map(is_program, words))}
    size = sum(file.size for file in entries.values()) + sum(objects.values())
    return {"path": str(path), **counts, "bytes": size}


def format_contents(found: SweepResult | Audit | PackResult) -> str:
    """Returns a text with the numbers of entries and objects that exist, were copied or were removed."""
    return f"{format_count(found.entries, 'entry', 'entries')} and {format_count(found.objects, 'object', 'objects')}"


def format_removal(swept: SweepResult, dry_run: bool) -> str:
    """Returns a text about what was removed, or would be removed, and the bytes that are left."""
    counts = format_contents(swept)
    if dry_run:
        return f"would remove {counts}; {format_bytes(swept.bytes_left)} would be left"
    return f"removed {counts}; {format_bytes(swept.bytes_left)} left"


def report_foreign_files(path: Path, aside: Iterable[str]) -> None:
    """Prints the paths of foreign files that were in the place of a store's files, and were set aside."""
    for name in aside:
        say(f"not of the store, and left to you: {path / escape_controls(name)}")


def report_refused(refused: Mapping[str, int], *, fails: bool) -> None:
    """Prints how many things were left out, by reason. Exits with 1 if ``fails``: something is wrong with one."""
    for reason, number in sorted(refused.items()):
        say(f"left out {number}: {reason}")
    if fails:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of a store: an executable (or a note that it cannot be stored), a program, or a family.

    Attributes:
        kind: one of the three.
        entry: the entry itself.
        file: the entry's file.
        alone: whether no other entry of its kind has its key.
        disk: the store on disk, which has its artifacts.
    """

    kind: StoredKind
    entry: Entry
    file: EntryFile
    alone: bool
    disk: DiskStore

    @property
    def id(self) -> str:
        """Its ID for people: the start of its key's digest, and its slot's number if the key has several entries."""
        number = "" if self.alone or self.kind == "executable" else f"-{self._number}"
        return f"{self.digest[:ID_DIGITS]}{number}"

    @property
    def _number(self) -> str:
        return self.entry.backend.partition("-")[2] or "0"

    @property
    def digest(self) -> str:
        """The digest of its key."""
        return self.entry.digest

    @property
    def name(self) -> str:
        """The name of the template, the module or the function; the ID if that is not known."""
        return self.entry.name or self.id

    @property
    def size(self) -> int:
        """The bytes of its artifacts and of its entry, which has the whole text of the key."""
        return self.file.size + sum(artifact.size for artifact in self.entry.artifacts)

    @property
    def seconds(self) -> float:
        """The seconds that compiling or tracing it took."""
        return self.entry.seconds

    @property
    def used(self) -> float:
        """The time of its last use, in seconds since the epoch."""
        return self.file.used / 1e9

    @property
    def texts(self) -> Mapping[str, str]:
        """The ingredients of its key, name to text; none if the entry has an outdated format."""
        return {} if self.entry.is_outdated else self.entry.texts

    @property
    def inputs(self) -> str:
        """The kinds of a program's inputs, in short."""
        return format_inputs(self.texts.get("arguments", "")) if self.kind == "program" else ""

    @property
    def refused(self) -> str | None:
        """The reason why the store cannot hold the executable; None if it does."""
        if all(artifact.name != REFUSED for artifact in self.entry.artifacts):
            return None
        reason = or_none(lambda: self._decode(REFUSED, lambda content: content.decode(errors="replace")))
        return reason or "the note that says why cannot be read"

    def is_called(self, query: str) -> bool:
        """True if a text is the start of its file's name, or of its digest, with or without its slot's number."""
        head, _, number = query.partition("-")
        is_slot = self.kind != "executable" and number in ("", self._number)
        return self.entry.id.startswith(query) or (is_slot and self.digest.startswith(head))

    def read_traces(self) -> ProgramText:
        """Returns the traces of a program.

        Raises:
            click.ClickException: if they are damaged, or of another version. The next two methods raise it as well.
        """
        from fusioncache.accelerators.programs.text import decode

        return self._decode("program", decode)  # type: ignore[no-any-return]

    def read_reads(self) -> Sequence[Read]:
        """Returns the reads of the derivation of a program or a family."""
        from fusioncache.accelerators.programs.text import decode_reads

        return self._decode("reads", decode_reads)  # type: ignore[no-any-return]

    def read_outline(self) -> Outline:
        """Returns the sizes and guards of a family."""
        from fusioncache.accelerators.sizes.families import decode_outline

        passes, programs = self._decode("family", decode_outline)
        pairs = ([f"({', '.join(map(str, each))})" for each in pair] for pair in passes.unequal)
        unequal = (f"not equal: {one} and {other}" for one, other in pairs)
        decided = (f"{each.function} decides {each.answer}" for each in passes.decisions)
        return Outline(programs, (*map(str, passes.guards), *dict.fromkeys((*unequal, *decided))))

    def make_template(self) -> TemplateStats:
        """Returns the template that an executable's key describes: one without regions or residual terms."""
        ops = count_ops(self.texts.get("ops", "")).total()
        return TemplateStats(self.name, self.digest, ops, ingredients=tuple(self.texts.items()))

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry as data for JSON. ``created`` and ``used`` are in seconds since the epoch.

        ``signer`` is the key that signed an entry from another machine; empty if it came unsigned, and None if it was
        made here.
        """
        entry = self.entry
        place = "backend" if self.kind == "executable" else "slot"
        about = {"id": self.id, "digest": self.digest, place: entry.backend, "name": entry.name}
        when = {"created": entry.created, "used": self.used, "seconds": entry.seconds}
        where = {"pid": entry.pid, "host": entry.host, "signer": entry.origin and entry.origin.key}
        return {**about, **when, **where, "size": self.size, **self._describe()}

    def _describe(self) -> dict[str, Any]:
        if self.kind == "executable":
            return {"artifacts": len(self.entry.artifacts), "refused": self.refused}
        if self.kind == "program":
            text = or_none(self.read_traces)
            return {"inputs": self.inputs, "templates": text and sorted(text.templates())}
        outline = or_none(self.read_outline)
        return {"lengths": outline and outline.lengths, "guards": outline and list(outline.guards)}

    def _decode(self, name: str, decode: Callable[[bytes], Any]) -> Any:
        try:
            (artifact,) = [artifact for artifact in self.entry.artifacts if artifact.name == name]
            return decode(self.disk.content(artifact))
        except (Refusal, ValueError, OSError) as error:
            raise click.ClickException(
                f"the {name} of {self.id} cannot be read: {error}. 'fusioncache verify --remove' removes damaged "
                "entries, and the next process makes them again"
            ) from error


@dataclass(frozen=True, slots=True)
class Outline:
    """The sizes and guards of a family, without its programs.

    Attributes:
        programs: the sizes of each of its programs.
        guards: the conditions that a further length must meet, one line of text each.
    """

    programs: tuple[ProgramSizes, ...]
    guards: tuple[str, ...]

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """For each program, the sizes that differ between programs, each once."""
        listed = [tuple(size for sizes in each.values() for size in sizes) for each in self.programs]
        varying = [column for column in dict.fromkeys(zip(*listed, strict=True)) if len(set(column)) > 1]
        return tuple(zip(*varying, strict=True))


def list_stored(directory: Path | None, kind: StoredKind) -> tuple[Path, tuple[StoredEntry, ...]]:
    """Returns the path of the store and its entries of a kind, newest first.

    Entries that cannot be read are left out: 'fusioncache verify' lists them.

    Raises:
        StoreError, OSError: if there is no store, or it cannot be used.
    """
    is_wanted = {"executable": is_compiled, "program": is_program, "family": is_family}[kind]
    found: list[Entry] = []
    disk = DiskStore(open_existing(directory), MAX_BYTES, MAX_AGE)
    files = disk.entries.list_files()
    for id_ in files:
        if is_wanted(id_.partition(".")[2]):
            with suppress(Refusal):
                found += filter(None, [disk.entries.get(id_)])
    digests = Counter(entry.digest for entry in found)
    stored = (StoredEntry(kind, entry, files[entry.id], digests[entry.digest] == 1, disk) for entry in found)
    return disk.directory.path, tuple(sorted(stored, key=lambda one: (-one.entry.created, one.entry.id)))


def list_sources(text: ProgramText) -> Mapping[str, str]:
    """Returns the source of each trace of a program, by name. A program may have no backward trace."""
    traces = zip(TRACES, (text.prologue, text.computation, text.backward, text.epilogue), strict=True)
    return {name: trace.source for name, trace in traces if trace is not None}


def or_none[T](read: Callable[[], T]) -> T | None:
    """Returns the result of a read function; None if it raises ``click.ClickException``."""
    try:
        return read()
    except click.ClickException:
        return None


def format_lengths(lengths: Iterable[tuple[int, ...]]) -> str:
    """Returns the lengths of programs as short text, such as ``2x64, 3x96``."""
    return ", ".join("x".join(map(str, each)) or "-" for each in lengths)


def format_inputs(arguments: str) -> str:
    """Returns the kind of each input as text, such as ``float32[2, 16] cuda:0, mask=None``.

    Args:
        arguments: the text of the ingredient that describes all inputs in full.
    """
    found = []
    for place, text in read_values(blur(arguments)).items():
        if named := _PLACE.fullmatch(place):
            found.append(f"{named[2]}={_shorten(text)}" if named[1] == "kwargs" else _shorten(text))
    return ", ".join(found)


def _shorten(text: str) -> str:
    short = _TENSOR.sub(lambda tensor: f"{tensor[1]}[{tensor[2].rstrip(',')}] {tensor[3]}", text[:_LOOKED_AT])
    return cut(short, _LONGEST)


type Kind = Literal["run", "template", "executable", "program", "family"]
type Named = Run | TemplateStats | StoredEntry

LISTS: Mapping[Kind, tuple[str, str]] = MappingProxyType(
    {
        "run": ("runs", "stats --runs"),
        "template": ("templates", "ls"),
        "executable": ("executables", "ls --store"),
        "program": ("programs", "ls --programs"),
        "family": ("families", "ls --families"),
    }
)
"""For each kind its plural, and the command that lists its IDs."""
_MOST_NAMED = 10
_MOST_RELATIVES = 256
"""How many templates with the same ops in their names are compared."""
LAST = "last"
"""The word that names the newest run."""


@dataclass(frozen=True, slots=True)
class NamedThing:
    """A thing that an ID may name.

    Attributes:
        kind: the kind of thing.
        id: its ID, as a list shows it.
        digest: the digest of its key, or the whole ID of a run.
        name: its name.
        value: the thing itself.
    """

    kind: Kind
    id: str
    digest: str
    name: str
    value: Named

    @property
    def texts(self) -> Mapping[str, str]:
        """The ingredients of its key, name to text; a run has none."""
        return {} if isinstance(self.value, Run) else self.value.texts

    def is_same(self, other: NamedThing) -> bool:
        """True if both are the same thing."""
        return (self.kind, self.id, self.digest) == (other.kind, other.id, other.digest)

    def has_id(self, query: str) -> bool:
        """True if its ID starts with a text."""
        value = self.value
        return value.is_called(query) if isinstance(value, StoredEntry) else self.digest.startswith(query)

    def has_name(self, query: str, *, loosely: bool) -> bool:
        """True if its name starts with a text; for a run, if ``loosely`` is set and its name contains the text."""
        return loosely and query in self.name if self.kind == "run" else self.name.startswith(query)

    def format_line(self, width: int) -> str:
        """Returns its line for a list of candidates, with its ID padded to a width."""
        about = self.value.inputs if isinstance(self.value, StoredEntry) else ""
        parts = [f"{self.id:<{width}}", f"{self.kind:<10}", escape_controls(self.name), escape_controls(about)]
        return "  ".join(filter(None, parts)).rstrip()


def pick(query: str, directory: Path | None, kinds: Sequence[Kind], *, newest: bool = False) -> NamedThing:
    """Returns the one thing that an ID names.

    Args:
        query: the start of an ID or of a name, or the whole.
        directory: the directory of the store; None for the default one.
        kinds: the possible kinds of things. A name means things of the first kind that has a match.
        newest: whether the whole name of several programs means the newest of them, as a script means its newest run.

    Raises:
        click.ClickException: if there is no such thing, or there are several.
        RecordError: if it does not exist elsewhere, and the record cannot be read.
    """
    found = find_candidates(query, directory, kinds)
    if not found:
        raise _make_unknown_error(query, directory, kinds)
    if len(found) == 1 or (newest and all(query in (one.name, one.name.partition(" · ")[0]) for one in found)):
        return found[0]
    plural = LISTS[found[0].kind][0] if len({one.kind for one in found}) == 1 else "things"
    width = max(len(one.id) for one in found)
    lines = [one.format_line(width) for one in found[:_MOST_NAMED]]
    lines += [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    listed = "".join(f"\n  {line}" for line in lines)
    raise click.ClickException(f"{query!r} stands for {len(found)} {plural}: give more characters of one.{listed}")


def pick_run(record: RecordReader, query: str | None) -> Run:
    """Returns the run whose ID starts with ``query``, or whose name contains it; the newest of a script, or of all.

    Raises:
        click.ClickException: if there is no such run, or several.
    """
    if runs := record.runs():
        found = runs[0] if query is None else pick(query, None, ("run",), newest=True).value
        assert isinstance(found, Run)
        return found
    raise click.ClickException(f"{record.path} has no runs: run a model with fusioncache first")


def find_candidates(query: str, directory: Path | None, kinds: Sequence[Kind]) -> Sequence[NamedThing]:
    """Returns all things that an ID may name: those with this ID or name, or else those that start with it.

    A name means things of the first kind that has a match. Raises as ``list_stored`` does.
    """
    if not query:
        return ()
    if query == LAST and "run" in kinds:
        return list_things("", directory, ("run",))[:1]
    listed = list_things(query, directory, kinds)
    exact = [one for one in listed if query in (one.id, one.digest, one.name)]
    if exact:
        # A template and its executable may have the same key, and so the same text.
        return exact[:1] if len({one.digest for one in exact}) == 1 and len({one.kind for one in exact}) > 1 else exact
    by_id = [one for one in listed if one.has_id(query)]
    by_name = [one for one in listed if one.has_name(query, loosely=not by_id)]
    return [one for one in listed if one in by_id or (one in by_name and one.kind == by_name[0].kind)]


def list_completions(start: str, kinds: Sequence[Kind]) -> Sequence[tuple[str, str]]:
    """Returns names and IDs of things for completion, each with a description.

    Names come first, because people know them, and IDs only if a start was typed. Runs are listed by their IDs.
    """
    listed = list_things(start, None, kinds)
    if "run" in kinds:
        return [(one.digest, one.name) for one in listed]
    templates = [one for one in listed if one.kind == "template"]
    names = [(one.name, one.digest[:ID_DIGITS]) for one in templates or listed]
    ids = [(one.digest if one.kind == "template" else one.id, one.name) for one in listed] if start else []
    return list(dict.fromkeys([*names, *ids]))


def list_things(query: str, directory: Path | None, kinds: Sequence[Kind]) -> Sequence[NamedThing]:
    """Returns all things of these kinds, but only templates whose digest or name starts with ``query``."""
    found: list[NamedThing] = []
    for kind in kinds:
        if kind == "run":
            runs = _read_record(RecordReader.runs)
            found += [NamedThing(kind, run.id[:ID_DIGITS], run.id, run.name, run) for run in runs]
        elif kind == "template":
            templates = _read_record(lambda record: record.find_templates(query))
            found += [NamedThing(kind, one.digest[:ID_DIGITS], one.digest, one.name, one) for one in templates]
        elif is_expected(directory):
            stored = list_stored(directory, kind)[1]
            found += [NamedThing(kind, one.id, one.digest, one.name, one) for one in stored]
    return found


def _read_record[T](read: Callable[[RecordReader], Sequence[T]]) -> Sequence[T]:
    """Returns the result of a function that reads the record; nothing if the record cannot be read."""
    try:
        return read(RecordReader())
    except RecordError:
        return ()


def _make_unknown_error(query: str, directory: Path | None, kinds: Sequence[Kind]) -> click.ClickException:
    """Returns an error that says where IDs come from, or which thing of another kind has this ID.

    Raises:
        RecordError: if there is an unreadable record, which may contain the ID.
    """
    if has_record():
        RecordReader().find_templates(query)  # raises an error that explains the problem
    others = [kind for kind in LISTS if kind not in kinds]
    takes = join_words([f"a{'n' if kind == 'executable' else ''} {kind}" for kind in kinds], "or")
    for other in find_candidates(query, directory, others):
        command = "stats --run" if other.kind == "run" else "explain" if "run" in kinds else "show"
        return click.ClickException(
            f"{query!r} is a {other.kind} ({escape_controls(other.name)}), and this command takes {takes}: "
            f"see 'fusioncache {command} {query}'"
        )
    lists = join_words([f"'fusioncache {LISTS[kind][1]}' lists {LISTS[kind][0]}" for kind in kinds])
    return click.ClickException(f"no ID or name starts with {query!r}. Give the start of one: {lists}.")


def find_record(run: str | None) -> RecordReader | None:
    """Returns the record; None if it has no runs or is missing, and there is a store, as after a pull.

    Args:
        run: the ID or name of the requested run; None if the user gave none.

    Raises:
        RecordError: if there is neither, the record cannot be read, or there is no record and a run was named.
    """
    try:
        record = RecordReader()
    except RecordError:
        if run is not None or has_record() or not is_expected(None):
            raise
        return None
    return None if run is None and is_expected(None) and not record.runs() else record


def find_regions(record: RecordReader, template: TemplateStats) -> Sequence[RegionRecord]:
    """Returns the regions of a template in the newest run that recorded some."""
    return next(filter(None, (record.regions(run.id, template.digest) for run in record.runs())), ())


def find_varying(record: RecordReader, template: TemplateStats) -> tuple[Varying, ...]:
    """Returns the sizes and numbers in which a template differs from otherwise equal templates of the record."""
    named = [each for each in record.find_templates(template.name.rpartition("_")[0]) if each.digest != template.digest]
    found = find_relatives([each.texts for each in (template, *named[:_MOST_RELATIVES])])
    return next((relatives.varying for relatives in found if 0 in relatives.members), ())
