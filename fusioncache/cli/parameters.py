"""Options and types of arguments that several commands have."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from fusioncache.cli.ids import Kind


class ThingId(click.ParamType):
    """The start of the ID or name of something in the record or the store.

    Args:
        name: of what is named, for messages.
        kinds: that it may be of.
    """

    def __init__(self, name: str, *kinds: Kind):
        self.name = name
        self._kinds = kinds

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """See click."""
        from fusioncache.cli.ids import list_completions

        try:
            found = list_completions(incomplete, self._kinds)
        except click.ClickException:
            return []
        return [CompletionItem(value, help=about) for value, about in found if value.startswith(incomplete)]


RUN_ID = ThingId("run", "run")
"""The start of a run's id, or a part of its name."""
ANY_ID = ThingId("id", "template", "executable", "program", "family")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: exact numbers, seconds and bytes.")
run_option = click.option(
    "--run",
    "run_id",
    type=RUN_ID,
    metavar="ID",
    help="Another run than the last: the start of its id or a part of its name, see 'stats --runs'.",
)


def _home(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Returns the path with ~ expanded, which shells do not do behind an equals sign."""
    return Path(os.path.expanduser(value)) if value else None


directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    callback=_home,
    help="The store, if it is not where it is by default.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Remove nothing and say what would be removed.")


_BYTES = {
    **{"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Measure(click.ParamType):
    """A number with a unit.

    Args:
        name: what it measures.
        example: for the message where it is none.
        units: what each stands for.
    """

    def __init__(self, name: str, example: str, units: Mapping[str, float]):
        self.name = name
        self._example = example
        self._units = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
        unit = self._units.get(found[2].lower()) if found else None
        if found is None or unit is None:
            self.fail(f"{value!r} is no {self.name} such as {self._example}", param, ctx)
        return float(found[1]) * unit


BYTES = Measure("size", "500MB or 2GiB", _BYTES)
"""A number of bytes."""
AGE = Measure("age", "12h or 30d", _SECONDS)
"""A number of seconds."""
