"""The command report: a run as one HTML file, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusioncache.cli.ids import pick_run
from fusioncache.cli.output import encode_fields, print_json, write_file
from fusioncache.cli.parameters import json_option, run_option
from fusioncache.cli.report_contents import GENERATOR, Contents, read_contents
from fusioncache.cli.run_counts import encode_run
from fusioncache.cli.run_misses import explain_templates
from fusioncache.cli.show import encode_region
from fusioncache.observe.record.reader import RecordReader

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
    record = RecordReader()
    found = read_contents(record, pick_run(record, run_id))
    if as_json:
        print_json(_encode(found))
        return
    if not force and output.exists():
        _check_report(output)
    from fusioncache.cli.report_page import render_report

    write_file(output, render_report(found).encode())
    if open_:
        click.launch(output.absolute().as_uri())


def _check_report(path: Path) -> None:
    """Makes sure that no file is lost that is no report.

    Raises:
        click.ClickException: if this is none.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            start = file.read(_LOOKED_AT)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read ({error.strerror}): give another path with -o") from error
    if start and f'content="{GENERATOR}"' not in start:
        raise click.ClickException(f"{path} is there and is no report: give another -o, or --force to overwrite it")


def _encode(contents: Contents) -> dict[str, Any]:
    """Returns what a report is made of, for JSON."""
    templates = [
        {**encode_fields(each.stats), "regions_at": [region.number for region in each.regions]}
        for each in contents.templates
    ]
    for template in templates:
        del template["ingredients"]
    regions = [
        {"template": each.record.digest, **encode_region(each.record), "ops": each.record.ops}
        for each in contents.regions
    ]
    misses = [
        {"template": miss.template.digest, **miss.to_dict()}
        for miss in explain_templates([each.stats for each in contents.met])
    ]
    return {
        **{"run": encode_run(contents.run), "models": contents.models, "environment": contents.environment},
        **{"templates": templates, "regions": regions, "misses": misses},
        **{"choices": contents.choices, "placements": contents.placements},
    }
