"""Finds the template, executable, program or family of an ID, in the record of runs or in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import click

from fusioncache.cli.families import KeptFamily
from fusioncache.cli.kept_entries import KeptEntry, list_entries
from fusioncache.cli.kept_executables import KeptExecutable
from fusioncache.cli.lookup import LAST, make_ambiguity_error
from fusioncache.cli.programs import KeptProgram
from fusioncache.cli.storage import is_expected
from fusioncache.humanize import escape_controls
from fusioncache.observe.record.reader import RecordReader, has_record
from fusioncache.observe.record.runs import Run
from fusioncache.observe.record.schema import RecordError, record_path
from fusioncache.observe.record.stats import TemplateCounts

type Kind = Literal["run", "template", "executable", "program", "family"]
type Named = Run | TemplateCounts | KeptExecutable | KeptProgram | KeptFamily

_SHOWN = 12
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


@dataclass(frozen=True, slots=True)
class Candidate:
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

    def is_exactly(self, wanted: str) -> bool:
        """Returns whether this is the whole of its ID or name."""
        return wanted in (self.id, self.digest, self.name)

    def format_line(self, width: int) -> str:
        """Returns what a list of candidates says of it, with its ID in so many columns."""
        about = self.value.inputs if isinstance(self.value, KeptProgram) else ""
        parts = [f"{self.id:<{width}}", f"{self.kind:<10}", escape_controls(self.name), escape_controls(about)]
        return "  ".join(part for part in parts if part).rstrip()


def pick(wanted: str, directory: Path | None, kinds: Sequence[Kind], *, newest: bool = False) -> Candidate:
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
    found = find(wanted, directory, kinds)
    if not found:
        raise _make_unknown_error(wanted, directory, kinds)
    if newest and all(one.kind == "program" and one.name == wanted for one in found):
        return found[0]
    if len(found) > 1:
        things = {one.kind for one in found}
        plural = _LISTS[found[0].kind][0] if len(things) == 1 else "things"
        width = max(len(one.id) for one in found)
        raise make_ambiguity_error(wanted, plural, [one.format_line(width) for one in found])
    return found[0]


def find(wanted: str, directory: Path | None, kinds: Sequence[Kind]) -> Sequence[Candidate]:
    """Returns everything that an ID may name: what it is the whole of, or else the start of.

    A name stands for things of the first kind that has it. Raises as ``list_entries`` does.
    """
    if not wanted:
        return ()
    if wanted == LAST and "run" in kinds:
        return _list_runs()[:1]
    listed = _list_all(wanted, directory, kinds)
    exact = [one for one in listed if one.is_exactly(wanted)]
    if exact:
        # A template and what was compiled for it may have the same key, and so the same text.
        return exact[:1] if len({one.digest for one in exact}) == 1 and len({one.kind for one in exact}) > 1 else exact
    by_id = any(_starts(one, wanted) for one in listed)
    named = next((one.kind for one in listed if _is_named(one, wanted, loosely=not by_id)), None)
    return [
        one
        for one in listed
        if _starts(one, wanted) or (one.kind == named and _is_named(one, wanted, loosely=not by_id))
    ]


def list_completions(start: str) -> Sequence[tuple[str, str]]:
    """Returns names and IDs that begin so, each with what it stands for: names first, IDs only if one was begun."""
    listed = _list_all(start, None, ("template", "executable", "program", "family"))
    templates = [one for one in listed if one.kind == "template"]
    found = templates or listed
    names = [(one.name, one.digest[:_SHOWN]) for one in found]
    ids = [(one.digest if one.kind == "template" else one.id, one.name) for one in listed] if start else []
    return list(dict.fromkeys([*names, *ids]))


def _list_all(wanted: str, directory: Path | None, kinds: Sequence[Kind]) -> Sequence[Candidate]:
    listers: Mapping[Kind, Callable[[], Sequence[Candidate]]] = {
        "run": _list_runs,
        "template": lambda: _list_templates(wanted),
    }
    stored = _list_stored(directory, kinds)
    return [one for kind in kinds for one in (listers[kind]() if kind in listers else stored.get(kind, ()))]


def _starts(candidate: Candidate, wanted: str) -> bool:
    if isinstance(candidate.value, KeptEntry):
        return candidate.value.is_called(wanted)
    return candidate.digest.startswith(wanted)


def _is_named(candidate: Candidate, wanted: str, *, loosely: bool) -> bool:
    """Returns whether a name begins so; of a run, where that is allowed, whether it has this in it."""
    if candidate.kind == "run":
        return loosely and wanted in candidate.name
    return candidate.name.startswith(wanted)


def _list_runs() -> Sequence[Candidate]:
    try:
        return [Candidate("run", run.id[:_SHOWN], run.id, run.name, run) for run in RecordReader().runs()]
    except RecordError:
        return ()


def _list_templates(wanted: str) -> Sequence[Candidate]:
    try:
        found = RecordReader().find(wanted)
    except RecordError:
        return ()
    return [Candidate("template", each.digest[:_SHOWN], each.digest, each.name, each) for each in found]


def _list_stored(directory: Path | None, kinds: Sequence[Kind]) -> Mapping[Kind, Sequence[Candidate]]:
    from fusioncache.store.entry import is_compiled, is_family, is_program

    if not is_expected(directory):
        return {}
    found: dict[Kind, Sequence[Candidate]] = {}
    if "executable" in kinds:
        found["executable"] = _name(list_entries(directory, KeptExecutable, is_compiled)[1], "executable")
    if "program" in kinds:
        found["program"] = _name(list_entries(directory, KeptProgram, is_program)[1], "program")
    if "family" in kinds:
        found["family"] = _name(list_entries(directory, KeptFamily, is_family)[1], "family")
    return found


def _name(entries: Iterable[KeptExecutable | KeptProgram | KeptFamily], kind: Kind) -> Sequence[Candidate]:
    return [Candidate(kind, each.id, each.entry.digest, each.name, each) for each in entries]


def _make_unknown_error(wanted: str, directory: Path | None, kinds: Sequence[Kind]) -> click.ClickException:
    """Returns an error that says where IDs come from, or what this is the ID of.

    Raises:
        RecordError: if there is a record that cannot be read, in which it may be.
    """
    if has_record():
        RecordReader()  # which says what is wrong with it
    others = [kind for kind in _LISTS if kind not in kinds]
    takes = _join([f"a{'n' if kind == 'executable' else ''} {kind}" for kind in kinds])
    for other in find(wanted, directory, others):
        hint = f"stats --run {wanted}" if other.kind == "run" else f"show {wanted}"
        return click.ClickException(
            f"{wanted!r} is a {other.kind} ({escape_controls(other.name)}), and this command takes {takes}: "
            f"see 'fusioncache {hint}'"
        )
    lists = _join([f"'fusioncache {_LISTS[kind][1]}' lists {_LISTS[kind][0]}" for kind in kinds], "and")
    advice = _describe_missing(directory) or f"Give the start of one: {lists}."
    return click.ClickException(f"no ID or name starts with {wanted!r}. {advice}")


def _describe_missing(directory: Path | None) -> str:
    if is_expected(directory) or has_record():
        return ""
    return (
        f"There is neither a record of runs nor a store in {record_path().parent}: run a model with fusioncache first, "
        "or copy a store with 'fusioncache pull URL'."
    )


def _join(parts: Sequence[str], word: str = "or") -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {word} {parts[-1]}"
