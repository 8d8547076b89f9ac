"""The executables of a store for the commands, read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from fusioncache.cli.kept_entries import KeptEntry
from fusioncache.cli.terminal import ID_DIGITS
from fusioncache.ir.key_text import read_key
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.template.text import count_ops


@dataclass(frozen=True, slots=True)
class KeptExecutable(KeptEntry):
    """An executable in the store, or a note that the store cannot hold it."""

    @property
    def id(self) -> str:
        """The start of its key's digest."""
        return self.entry.digest[:ID_DIGITS]

    @property
    def name(self) -> str:
        """Of the template that it was compiled for; the start of its digest if that is not known."""
        return self.entry.name or self.id

    @property
    def texts(self) -> Mapping[str, str]:
        """The ingredients of its key, name to text.

        Raises:
            click.ClickException: if another version wrote them.
        """
        try:
            return read_key(self.entry.text)
        except ValueError as error:
            raise click.ClickException(
                f"the key of {self.id} cannot be read ({error}): another version of fusioncache wrote it"
            ) from error

    @property
    def refused(self) -> str | None:
        """The reason why the store cannot hold the executable; None if it does."""
        from fusioncache.store.entry import REFUSED

        if all(artifact.name != REFUSED for artifact in self.entry.artifacts):
            return None
        return str(self.decode(REFUSED, lambda content: content.decode(errors="replace")))

    def is_called(self, wanted: str) -> bool:
        """Returns whether this is the start of its digest, or of its whole id with the backend."""
        return self.entry.id.startswith(wanted)

    def make_template(self) -> TemplateStats:
        """Returns the template that its key describes: one without regions or residual terms."""
        entry, texts = self.entry, self.texts
        ops = count_ops(texts.get("ops", "")).total()
        counts = (0, 0, (), 0, 0.0, 0, 0.0, 0.0)
        return TemplateStats(self.name, entry.digest, ops, *counts, tuple(texts.items()))

    def data(self) -> dict[str, Any]:
        """Returns what the commands' JSON says of it."""
        entry = self.entry
        about = {"digest": entry.digest, "name": entry.name, "backend": entry.backend}
        when = {"created": entry.created, "used": self.used, "seconds": entry.seconds}
        where = {"pid": entry.pid, "host": entry.host, "size": self.size}
        return {**about, **when, **where, "refused": self.refused}
