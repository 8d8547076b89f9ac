"""The list of all commands of the command line. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pkgutil import resolve_name
from typing import Any

import click

from fusioncache import __version__
from fusioncache.cli.console import count_columns, wrap
from fusioncache.observe.record.database import RecordError
from fusioncache.store.files import Refusal, StoreError

_ERROR = "Error: "
"""The prefix of click's error messages."""


class LazyGroup(click.Group):
    """The group of all ``COMMANDS``. Exits with 1 and the message if the record or the store cannot be used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        address = COMMANDS.get(cmd_name)
        return None if address is None else resolve_name(address)

    def invoke(self, ctx: click.Context) -> Any:
        """See click."""
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="replace")  # such as Latin-1, which lacks an ellipsis
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            _fit_message(error)
            raise
        except (RecordError, StoreError) as error:
            raise _fit_message(click.ClickException(str(error))) from error
        except BrokenPipeError:
            raise  # click ends quietly if the output is no longer read
        except (Refusal, OSError) as error:
            what = "the keys cannot" if ctx.invoked_subcommand == "keys" else "the store cannot"
            if isinstance(error, OSError) and not error.filename:
                what = f"the output cannot be written, or {what}"
            raise _fit_message(click.ClickException(f"{what} be used: {error}")) from error


def _fit_message(error: click.ClickException) -> click.ClickException:
    """Returns the error after it was changed to print its message in the width of the terminal."""
    message = wrap(f"{_ERROR}{error.format_message()}", count_columns()).removeprefix(_ERROR)
    error.format_message = lambda: message  # type: ignore[method-assign]
    return error


COMMANDS = {
    "clear": "fusioncache.cli.upkeep:clear",
    "completion": "fusioncache.cli.upkeep:completion",
    "diff": "fusioncache.cli.comparison:diff",
    "dir": "fusioncache.cli.upkeep:dir_",
    "doctor": "fusioncache.cli.doctor:doctor",
    "explain": "fusioncache.cli.comparison:explain",
    "graph": "fusioncache.cli.picture:graph",
    "keys": "fusioncache.cli.trust:keys",
    "ls": "fusioncache.cli.overview:ls",
    "pack": "fusioncache.cli.exchange:pack",
    "prune": "fusioncache.cli.upkeep:prune",
    "pull": "fusioncache.cli.exchange:pull",
    "push": "fusioncache.cli.exchange:push",
    "report": "fusioncache.cli.report:report",
    "show": "fusioncache.cli.show:show",
    "stats": "fusioncache.cli.overview:stats",
    "unpack": "fusioncache.cli.exchange:unpack",
    "verify": "fusioncache.cli.upkeep:verify",
    "warm": "fusioncache.cli.upkeep:warm",
}
"""The address of each command, as ``module:function``.

It is imported when it is used, so no command waits for the imports of another.
"""


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="fusioncache")
def main() -> None:
    """Show what fusioncache shared and compiled, and why. Maintain its record and store.

    The record is the database of what runs did. The store is the directory of entries that processes share. Both are in
    $FUSIONCACHE_DIR if that is set, else in the platform's cache directory. An ID is the start of one in a list, or the
    start of a name.

    \b
    Words:
        run         what one cache did in one process       (stats --runs)
        region      operations that Thunder hands to a compiler as one
        template    a region without accidental differences;
                    equal regions share it, compiled once   (ls)
        hit, miss   a region whose template is known, or new
        bypass      a region that stays as Thunder made it, with the reason
        executable  the compiled code of a template for
                    one layout of its inputs                (ls --store)
        program     the traces that Thunder makes of a
                    model for one kind of input             (ls --programs)
        family      programs that differ only in sizes      (ls --families)
        key         the text of all that a result depends on, in ingredients
        entry       an executable, a program or a family in the
                    store, under its key; its files are objects
        guard       a condition that inputs must meet, so that a program
                    of a family is used

    \b
    Examples:
        fusioncache stats
        fusioncache ls --sort hits --limit 10
    """
