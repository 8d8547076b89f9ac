"""The command report: a run as one HTML file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.json_output import encode_run, encode_template, print_json
from fusioncache.cli.lookup import pick_run
from fusioncache.cli.options import json_option, run_option
from fusioncache.cli.template_parts import encode_region
from fusioncache.cli.terminal import say
from fusioncache.observe.record.reader import RecordReader

if TYPE_CHECKING:
    from fusioncache.cli.report.contents import Contents
    from fusioncache.cli.report.misses import Miss

_FILE = Path("fusioncache-report.html")
_LOOKED_AT = 1000
"""Characters of a file in which a report says that it is one."""


@click.command()
@run_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_FILE,
    help=f"The file to write, {_FILE} by default.",
)
@click.option("--open", "open_", is_flag=True, help="Open it in the browser.")
@click.option("-y", "--force", is_flag=True, help="Overwrite a file that is no report.")
@json_option
def report(run_id: str | None, output: Path, open_: bool, force: bool, as_json: bool) -> None:
    """Write a run as one HTML file that needs no network.

    It shows what was shared on a map of the model, each template with its ops, why each miss was one, what was left
    out, where the time went, and what was chosen for the residual streams. With --json it prints what the report is
    made of, and writes no file.

    \b
    Examples:
        fusioncache report --open
        fusioncache report --run 5f3a -o slow.html
    """
    from fusioncache.cli.report.contents import read_contents

    record = RecordReader()
    found = read_contents(record, pick_run(record, run_id))
    if as_json:
        print_json(_data(found))
        return
    _may_write(output, force)
    from fusioncache.cli.report.page import render_report

    _write(output, render_report(found))
    if open_:
        click.launch(output.absolute().as_uri())


def _may_write(path: Path, force: bool) -> None:
    """Makes sure that no file is lost that is no report.

    Raises:
        click.ClickException: if there is such a file, and ``force`` is not set.
    """
    from fusioncache.cli.report.contents import GENERATOR

    if force or not path.exists():
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            start = file.read(_LOOKED_AT)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read ({error.strerror}): give another path with -o") from error
    if start and f'content="{GENERATOR}"' not in start:
        raise click.ClickException(f"{path} is there and is no report: give another -o, or --force to overwrite it")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written ({error.strerror}): give another path with -o") from error
    say(f"wrote {path}")


def _data(contents: Contents) -> dict[str, Any]:
    from fusioncache.cli.report.misses import find_misses

    templates = [
        {**encode_template(template.stats), "regions_at": [region.number for region in template.regions]}
        for template in contents.templates
    ]
    regions = [
        {"template": region.record.digest, **encode_region(region.record), "ops": region.record.ops}
        for region in contents.regions
    ]
    return {
        "run": encode_run(contents.run),
        "models": contents.models,
        "environment": contents.environment,
        "templates": templates,
        "regions": regions,
        "misses": [_miss_data(miss) for miss in find_misses(contents.templates)],
        "choices": [dataclasses.asdict(choice) for choice in contents.choices],
        "placements": [dataclasses.asdict(placement) for placement in contents.placements],
    }


def _miss_data(miss: Miss) -> dict[str, Any]:
    return {
        "template": miss.template.stats.digest,
        "nearest": miss.nearest.stats.digest if miss.nearest else None,
        "sentence": miss.reason.difference.sentence("here", "there") if miss.nearest else None,
        "changes": [change.data() for change in miss.reason.difference.changes],
    }
