"""The command doctor: what works on this machine, and why the rest does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import directory_option, json_option
from fusioncache.cli.terminal import Column, count_columns, format_pairs, format_table, wrap

if TYPE_CHECKING:
    from fusioncache.cli.diagnosis import CapabilityReport, Diagnosis


@click.command()
@directory_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, directory: Path | None, as_json: bool) -> None:
    """Show what works with the installed Thunder, torch and compilers, and why the rest does not.

    Each capability of Thunder is probed, which takes some seconds with the imports. A function of Thunder that differs
    from the source that fusioncache was written for is shown as a diff. The exit status is 0 if everything works, 1 if
    something is off or differs, and 2 if nothing is shared.

    \b
    Examples:
        fusioncache doctor
        fusioncache doctor --json > doctor.json
        fusioncache doctor > /dev/null || echo "something is off"
    """
    from fusioncache.cli.diagnosis import diagnose

    found = diagnose(directory)
    if as_json:
        print_json(found.to_dict())
    else:
        width = count_columns()
        click.echo("\n\n".join(_write(found, width)))
    ctx.exit(found.status)


def _write(found: Diagnosis, width: int | None) -> Iterator[str]:
    """Yields the paragraphs of a diagnosis."""
    yield format_pairs([(name, text or "none") for name, text in found.versions.items()])
    if found.capabilities:
        yield _write_capabilities(found.capabilities)
    for misfit in found.misfits:
        installed = f"installed: {misfit.digest}" if misfit.digest else "it is not there"
        yield "\n".join((wrap(f"{misfit.original} ({misfit.capability}), {installed}", width), *misfit.difference))
    if found.backends:
        yield format_pairs([(name, problem or "works") for name, problem in found.backends.items()])
    if found.store:
        store = found.store
        size = "not there yet" if store.bytes is None else f"{store.bytes / 2**20:.1f} MiB"
        yield format_pairs([("store", store.path), ("size", size), ("permissions", store.mode or "-")])
    advice = found.advice or ("everything works",)
    yield "\n".join(wrap(f"- {text}", width, 2) for text in advice)


def _write_capabilities(capabilities: tuple[CapabilityReport, ...]) -> str:
    folded = (Column(title, fold=True) for title in ("needed by", "how, or why not"))
    columns = (Column("capability"), next(folded), Column("works"), next(folded))
    rows = [
        (each.name, ", ".join(each.needed_by) or "(faster)", "yes" if each.works else "no", each.how or each.problem)
        for each in capabilities
    ]
    probes = f"all probes: {1000 * sum(each.seconds for each in capabilities):.0f} ms"
    return f"{format_table(columns, rows)}\n\n{probes}"
