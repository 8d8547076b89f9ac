"""The comparison of two templates, or of two executables, by their keys."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.executables import find_reasons_not_kept
from fusioncache.cli.ids import Candidate
from fusioncache.cli.json_output import print_json
from fusioncache.cli.kept_entries import list_entries
from fusioncache.cli.kept_executables import KeptExecutable
from fusioncache.cli.lookup import SourceLocation, add_ingredients, find_locations, find_regions, format_locations
from fusioncache.cli.terminal import count_columns, shorten_id, wrap
from fusioncache.humanize import escape_controls, format_count
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.stats import TemplateCounts, TemplateStats

if TYPE_CHECKING:
    from fusioncache.observe.explain.difference import Row

_PIPED_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Subject:
    """A template of the record, or an executable of the store, that is compared.

    Attributes:
        where: ``record`` or ``store``.
        digest: of its key.
        name: of the template.
        texts: of the ingredients of its key, by name.
        locations: where it comes from, as far as that is known.
        not_kept: why the store cannot hold what was compiled for it, if it cannot.
    """

    where: str
    digest: str
    name: str
    texts: Mapping[str, str]
    locations: Sequence[SourceLocation] = ()
    not_kept: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The name, and the place that it comes from."""
        head = (
            f"{shorten_id(self.digest)}  {self.name}{' (an executable in the store)' if self.where == 'store' else ''}"
        )
        about = [*format_locations(self.locations), *(f"not stored: {reason}" for reason in self.not_kept)]
        return "\n   ".join(map(escape_controls, [head, *about]))

    def data(self) -> dict[str, Any]:
        """Returns what the commands' JSON says of it."""
        places = [location.data() for location in self.locations]
        about = {"digest": self.digest, "name": self.name, "in": self.where}
        return {**about, "places": places, "not_kept": self.not_kept}


def read_subject(candidate: Candidate, directory: Path | None) -> Subject:
    """Returns all that is known of a template or an executable.

    Raises:
        click.ClickException: if it cannot be read.
    """
    value = candidate.value
    if isinstance(value, KeptExecutable):
        return _describe_executable(value)
    assert isinstance(value, TemplateCounts)
    record = RecordReader()
    template = add_ingredients(record, value)
    (reasons,) = find_reasons_not_kept([template], directory)
    locations = find_locations(find_regions(record, template))
    return Subject(
        "record", template.digest, template.name, dict(template.ingredients), locations, tuple(sorted(reasons))
    )


def find_nearest_subject(subject: Subject, directory: Path | None) -> Subject:
    """Returns what differs least, of the same record or store.

    Raises:
        click.ClickException: if there are no others.
    """
    from fusioncache.observe.explain.difference import find_nearest

    known = _list_templates() if subject.where == "record" else _list_executables(directory)
    others = [other for other in known if other.digest != subject.digest]
    position = find_nearest(subject.texts, [other.texts for other in others])
    if position is None:
        raise click.ClickException(
            f"{subject.name} is the only one in the {subject.where}: there is nothing to compare it with. "
            "Give a second ID."
        )
    nearest = others[position]
    if nearest.where == "store":
        return nearest
    (template,) = RecordReader().find(nearest.digest)
    return read_subject(Candidate("template", template.digest, template.digest, template.name, template), directory)


def print_comparison(a: Subject, b: Subject, width: int | None, *, everything: bool, as_json: bool) -> None:
    """Prints in what two templates or executables differ: a sentence, then the lines that differ.

    Args:
        a: the one that is meant.
        b: the other one.
        width: columns of the output; None for those of the terminal.
        everything: whether to print the lines that are the same as well.
        as_json: whether to print JSON, which always has all lines.
    """
    from fusioncache.observe.explain.difference import SAME, align, compare

    difference, rows = compare(a.texts, b.texts), align(a.texts, b.texts)
    if as_json:
        changes = [change.data() for change in difference.changes]
        shown = {"sentence": difference.sentence(), "changes": changes, "rows": [asdict(row) for row in rows]}
        print_json({"a": a.data(), "b": b.data(), **shown})
        return
    if a.digest == b.digest:
        kind = "executable" if a.where == "store" else "template"
        click.echo(wrap(f"Both IDs name the same {kind}: {a.title}", count_columns()))
        return
    click.echo(wrap(escape_controls(difference.sentence()), count_columns()))
    click.echo(wrap(f"\nA  {a.title}\nB  {b.title}\n", count_columns()))
    shown_rows = [row for row in rows if everything or row.mark != SAME]
    _print_rows(shown_rows, width or count_columns() or _PIPED_WIDTH)
    if left_out := len(rows) - len(shown_rows):
        click.echo(f"{format_count(left_out, 'line is', 'lines are')} the same in both (--all shows all lines)")


def _list_templates() -> Sequence[Subject]:
    record = RecordReader()
    return [_describe_template(template) for template in record.add_ingredients(record.find(""))]


def _list_executables(directory: Path | None) -> Sequence[Subject]:
    """Returns the executables of the store whose keys this version can read."""
    from fusioncache.store.entry import is_compiled

    found = []
    for executable in list_entries(directory, KeptExecutable, is_compiled)[1]:
        try:
            found.append(_describe_executable(executable))
        except click.ClickException:
            continue  # of another format
    return found


def _describe_template(template: TemplateStats) -> Subject:
    return Subject("record", template.digest, template.name, dict(template.ingredients))


def _describe_executable(executable: KeptExecutable) -> Subject:
    reasons = tuple(filter(None, [executable.refused]))
    return Subject("store", executable.entry.digest, executable.name, executable.texts, (), reasons)


def _print_rows(rows: Iterable[Row], width: int) -> None:
    from fusioncache.observe.explain.difference import Row, write_rows

    printable = (Row(escape_controls(row.a), row.mark, escape_controls(row.b)) for row in rows)
    lines = list(write_rows(printable, width))
    if sys.stdout.isatty():
        _print_coloured(lines)
    elif lines:
        click.echo("\n".join(line for line, _ in lines))


def _print_coloured(lines: Iterable[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from fusioncache.observe.explain.difference import ONLY_A, ONLY_B, OTHER

    styles = {OTHER: "yellow", ONLY_A: "red", ONLY_B: "green"}
    console = Console(highlight=False)
    for line, mark in lines:
        console.print(Text(line, styles.get(mark, "")), soft_wrap=True)
