"""The commands. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

from typing import Any

import click

from fusioncache import __version__
from fusioncache.cache.record import Record, RecordError
from fusioncache.cli.data import print_json, run_data, template_data
from fusioncache.cli.pages import print_run, print_runs, print_template, print_templates
from fusioncache.cli.pick import pick_run, pick_template
from fusioncache.cli.sharing import pull, push


class _Commands(click.Group):
    """Exits with 1 and the message where the record cannot be read."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RecordError as error:
            raise click.ClickException(str(error)) from error


_run_option = click.option(
    "--run", "run_id", metavar="ID", help="Another run than the newest: the start of its id, see 'stats --runs'."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: exact values, times in seconds.")


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="fusioncache")
def main() -> None:
    """Show what fusioncache recorded, and share what it compiled.

    A run is one cache of one process. Its record is in $FUSIONCACHE_DIR if that is set, else in the platform's cache
    directory.

    \b
    Example:
        fusioncache stats
    """


@main.command()
@_run_option
@click.option("--runs", "all_runs", is_flag=True, help="List all recorded runs instead, newest first.")
@_json_option
def stats(run_id: str | None, all_runs: bool, as_json: bool) -> None:
    """Show what the newest run counted.

    The saved seconds are an estimate: each template's measured compile seconds times its hits.

    \b
    Examples:
        fusioncache stats
        fusioncache stats --runs
        fusioncache stats --run 5f3a --json
    """
    if all_runs and run_id is not None:
        raise click.UsageError("--runs lists all runs and --run shows one: give only one of them.")
    record = Record()
    runs = record.runs() if all_runs else (pick_run(record, run_id),)
    if all_runs and as_json:
        print_json({"runs": [run_data(run) for run in runs]})
    elif all_runs:
        print_runs(runs)
    elif as_json:
        print_json(run_data(runs[0]))
    else:
        print_run(runs[0])


@main.command()
@_run_option
@_json_option
def ls(run_id: str | None, as_json: bool) -> None:
    """List the templates of the newest run, the most expensive first.

    Arities are the numbers of residual terms that regions had: 1-31 is each from 1 to 31, a slash stands between the
    chains of a template that has several, and - means no chain.

    \b
    Examples:
        fusioncache ls
        fusioncache ls --run 5f3a --json
    """
    record = Record()
    run = pick_run(record, run_id)
    templates = record.templates(run.id)
    if as_json:
        print_json({"run": run.id, "templates": [template_data(template) for template in templates]})
    else:
        print_templates(templates)
    if not templates:
        click.echo(f"Run {run.id} has no templates: 'fusioncache stats' says what was bypassed and why.", err=True)


@main.command()
@click.argument("id_", metavar="ID")
@_json_option
def show(id_: str, as_json: bool) -> None:
    """Show one template: its counts and what its key is made of.

    ID is the start of the template's digest or name, or the whole. The counts are those of the newest run that had it.
    Where the ops say constant0 or attribute0, the constants and attributes below them say what that is.

    \b
    Examples:
        fusioncache show residual_tanh
        fusioncache show 3f9a2c --json
    """
    template = pick_template(Record(), id_)
    if as_json:
        ingredients = [{"name": name, "text": text} for name, text in template.ingredients]
        print_json({**template_data(template), "ingredients": ingredients})
    else:
        print_template(template)


main.add_command(push)
main.add_command(pull)
