"""A group of commands that are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from fusioncache.record.schema import RecordError


class LazyGroup(click.Group):
    """Knows its commands by name. Exits with 1 and the message where the record cannot be read.

    Args:
        lazy: where each command is, as ``module:function``.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        place = self._lazy.get(cmd_name)
        if place is None:
            return None
        module, _, function = place.partition(":")
        command: click.Command = getattr(import_module(module), function)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """See click."""
        try:
            return super().invoke(ctx)
        except RecordError as error:
            raise click.ClickException(str(error)) from error
