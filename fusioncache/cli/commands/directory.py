"""The command dir: where everything is."""

from __future__ import annotations

import click

from fusioncache.cli.json_output import print_json
from fusioncache.cli.options import json_option
from fusioncache.observe.record.schema import record_path
from fusioncache.process.settings import REMOTE


@click.command("dir")
@json_option
def dir_(as_json: bool) -> None:
    """Print the directory that the record and the store are in.

    It need not exist yet. --json adds the paths of the record and the store, and the remote store that
    FUSIONCACHE_REMOTE names, from which missing entries come.

    \b
    Examples:
        fusioncache dir
        du -sh "$(fusioncache dir)"
        fusioncache dir --json
    """
    record = record_path()
    if as_json:
        from fusioncache.store import default_path
        from fusioncache.store.transport import redact_url

        remote = REMOTE.read()
        where = {"directory": record.parent, "record": record, "store": default_path()}
        print_json(
            {**{name: str(path) for name, path in where.items()}, "remote": redact_url(remote) if remote else None}
        )
    else:
        click.echo(record.parent)
