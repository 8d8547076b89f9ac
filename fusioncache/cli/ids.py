"""Finds the run, template, executable, program or family of an ID, in the record of runs or in a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import click

from fusioncache.cli.console import ID_DIGITS
from fusioncache.cli.stored import StoredEntry, is_expected, list_stored
from fusioncache.humanize import escape_controls
from fusioncache.observe.explain.difference import Varying, find_relatives
from fusioncache.observe.record.database import RecordError, RecordReader, has_record, record_path
from fusioncache.observe.record.observations import RegionRecord, Run
from fusioncache.observe.record.stats import TemplateStats

type Kind = Literal["run", "template", "executable", "program", "family"]
type Named = Run | TemplateStats | StoredEntry

_LISTS: Mapping[Kind, tuple[str, str]] = MappingProxyType(
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
"""How many templates with the same telling ops are looked into."""
LAST = "last"
"""What names the newest run."""


@dataclass(frozen=True, slots=True)
class NamedThing:
    """Something that an ID may name.

    Attributes:
        kind: of the thing.
        id: as a list shows it.
        digest: of its key, or the whole ID of a run.
        name: of the thing.
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
        """Returns whether both are one and the same."""
        return (self.kind, self.id, self.digest) == (other.kind, other.id, other.digest)

    def has_id(self, wanted: str) -> bool:
        """Returns whether its ID starts so."""
        value = self.value
        return value.is_called(wanted) if isinstance(value, StoredEntry) else self.digest.startswith(wanted)

    def has_name(self, wanted: str, *, loosely: bool) -> bool:
        """Returns whether its name starts so; of a run, where that is allowed, whether its name has this in it."""
        return loosely and wanted in self.name if self.kind == "run" else self.name.startswith(wanted)

    def format_line(self, width: int) -> str:
        """Returns what a list of candidates says of it, with its ID in so many columns."""
        about = self.value.inputs if isinstance(self.value, StoredEntry) else ""
        parts = [f"{self.id:<{width}}", f"{self.kind:<10}", escape_controls(self.name), escape_controls(about)]
        return "  ".join(filter(None, parts)).rstrip()


def pick(wanted: str, directory: Path | None, kinds: Sequence[Kind], *, newest: bool = False) -> NamedThing:
    """Returns the one thing that an ID names.

    Args:
        wanted: the start of an ID or of a name, or the whole.
        directory: of the store; None for the usual one.
        kinds: the kinds of things that may be meant, those that a name stands for first.
        newest: whether the whole name of several programs stands for the newest of them.

    Raises:
        click.ClickException: if there is no such thing, or there are several.
        RecordError: if there is none elsewhere, and the record cannot be read.
    """
    found = find_candidates(wanted, directory, kinds)
    if not found:
        raise _make_unknown_error(wanted, directory, kinds)
    if len(found) == 1 or (newest and all(one.kind == "program" and one.name == wanted for one in found)):
        return found[0]
    plural = _LISTS[found[0].kind][0] if len({one.kind for one in found}) == 1 else "things"
    width = max(len(one.id) for one in found)
    lines = [one.format_line(width) for one in found[:_MOST_NAMED]]
    lines += [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    listed = "".join(f"\n  {line}" for line in lines)
    raise click.ClickException(f"{wanted!r} stands for {len(found)} {plural}: give more characters of one.{listed}")


def pick_run(record: RecordReader, wanted: str | None) -> Run:
    """Returns the run whose ID starts with ``wanted``, or else whose name has it; without one, the newest.

    Raises:
        click.ClickException: if there is no such run, or several.
    """
    if runs := record.runs():
        found = runs[0] if wanted is None else pick(wanted, None, ("run",)).value
        assert isinstance(found, Run)
        return found
    raise click.ClickException(f"{record.path} has no runs: run a model with fusioncache first")


def find_candidates(wanted: str, directory: Path | None, kinds: Sequence[Kind]) -> Sequence[NamedThing]:
    """Returns everything that an ID may name: what it is the whole of, or else the start of.

    A name stands for things of the first kind that has it. Raises as ``list_stored`` does.
    """
    if not wanted:
        return ()
    if wanted == LAST and "run" in kinds:
        return _list_runs()[:1]
    listed = list_things(wanted, directory, kinds)
    exact = [one for one in listed if wanted in (one.id, one.digest, one.name)]
    if exact:
        # A template and what was compiled for it may have the same key, and so the same text.
        return exact[:1] if len({one.digest for one in exact}) == 1 and len({one.kind for one in exact}) > 1 else exact
    by_id = [one for one in listed if one.has_id(wanted)]
    by_name = [one for one in listed if one.has_name(wanted, loosely=not by_id)]
    return [one for one in listed if one in by_id or (one in by_name and one.kind == by_name[0].kind)]


def list_completions(start: str, kinds: Sequence[Kind]) -> Sequence[tuple[str, str]]:
    """Returns names and IDs of things, each with what it stands for, for completion.

    Names come first, because people know them, and IDs only if one was begun; runs go by their IDs.
    """
    listed = list_things(start, None, kinds)
    if "run" in kinds:
        return [(one.digest, one.name) for one in listed]
    templates = [one for one in listed if one.kind == "template"]
    names = [(one.name, one.digest[:ID_DIGITS]) for one in templates or listed]
    ids = [(one.digest if one.kind == "template" else one.id, one.name) for one in listed] if start else []
    return list(dict.fromkeys([*names, *ids]))


def list_things(wanted: str, directory: Path | None, kinds: Sequence[Kind]) -> Sequence[NamedThing]:
    """Returns all things of these kinds; of templates those whose digest or name starts with ``wanted``."""
    found: list[NamedThing] = []
    for kind in kinds:
        if kind == "run":
            found += _list_runs()
        elif kind == "template":
            found += _list_templates(wanted)
        elif is_expected(directory):
            stored = list_stored(directory, kind)[1]
            found += [NamedThing(kind, one.id, one.digest, one.name, one) for one in stored]
    return found


def _list_runs() -> Sequence[NamedThing]:
    try:
        return [NamedThing("run", run.id[:ID_DIGITS], run.id, run.name, run) for run in RecordReader().runs()]
    except RecordError:
        return ()


def _list_templates(wanted: str) -> Sequence[NamedThing]:
    try:
        found = RecordReader().find_templates(wanted)
    except RecordError:
        return ()
    return [NamedThing("template", each.digest[:ID_DIGITS], each.digest, each.name, each) for each in found]


def _make_unknown_error(wanted: str, directory: Path | None, kinds: Sequence[Kind]) -> click.ClickException:
    """Returns an error that says where IDs come from, or what this is the ID of.

    Raises:
        RecordError: if there is a record that cannot be read, in which it may be.
    """
    if has_record():
        RecordReader()  # which says what is wrong with it
    others = [kind for kind in _LISTS if kind not in kinds]
    takes = _join([f"a{'n' if kind == 'executable' else ''} {kind}" for kind in kinds], "or")
    for other in find_candidates(wanted, directory, others):
        hint = f"stats --run {wanted}" if other.kind == "run" else f"show {wanted}"
        return click.ClickException(
            f"{wanted!r} is a {other.kind} ({escape_controls(other.name)}), and this command takes {takes}: "
            f"see 'fusioncache {hint}'"
        )
    if not (is_expected(directory) or has_record()):
        advice = (
            f"There is neither a record of runs nor a store in {record_path().parent}: run a model with fusioncache "
            "first, or copy a store with 'fusioncache pull URL'."
        )
    else:
        lists = _join([f"'fusioncache {_LISTS[kind][1]}' lists {_LISTS[kind][0]}" for kind in kinds], "and")
        advice = f"Give the start of one: {lists}."
    return click.ClickException(f"no ID or name starts with {wanted!r}. {advice}")


def _join(parts: Sequence[str], word: str) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {word} {parts[-1]}"


def find_record(run: str | None) -> RecordReader | None:
    """Returns the record; None if no run is on record here but there is a store, as after a pull.

    Args:
        run: what names the run that is asked for, if one is named.

    Raises:
        RecordError: if there is neither, or the record cannot be read, or a run was named.
    """
    try:
        record = RecordReader()
    except RecordError:
        if run is not None or has_record() or not is_expected(None):
            raise
        return None
    return None if run is None and is_expected(None) and not record.runs() else record


def find_regions(record: RecordReader, template: TemplateStats) -> Sequence[RegionRecord]:
    """Returns the regions that have a template, of the newest run that had it."""
    return next(filter(None, (record.regions(run.id, template.digest) for run in record.runs())), ())


def find_varying(record: RecordReader, template: TemplateStats) -> tuple[Varying, ...]:
    """Returns what varies between a template and those of the record that are the same but for sizes and numbers."""
    named = [each for each in record.find_templates(template.name.rpartition("_")[0]) if each.digest != template.digest]
    found = find_relatives([each.texts for each in (template, *named[:_MOST_RELATIVES])])
    return next((relatives.varying for relatives in found if 0 in relatives.members), ())
