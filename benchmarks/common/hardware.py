"""What a benchmark's parent process asks before it starts its workers."""

from __future__ import annotations

from typing import Any

import click

from benchmarks.common import processes


def look(backend: str) -> dict[str, Any]:
    """The environment, the device and the backend to use, found out in a process that imports torch.

    Raises:
        click.ClickException: if that fails.
        click.UsageError: if the backend does not work here; the message says why.
    """
    click.echo("looking at the hardware and the versions", err=True)
    try:
        here: dict[str, Any] = processes.call("benchmarks.common.environment", backend)
    except processes.ProcessFailed as failure:
        raise click.ClickException(f"{failure}\n{failure.log}") from None
    if here["problem"]:
        raise click.UsageError(f"--backend {backend} does not work here: {here['problem']}")
    return here
