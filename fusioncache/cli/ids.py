"""Types of arguments that name a run or a template, so that a shell can complete them."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from fusioncache.record.reader import RecordReader
from fusioncache.record.schema import RecordError


class RunId(click.ParamType):
    """The start of a run's id, or a part of its name."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """See click."""
        try:
            runs = RecordReader().runs()
        except RecordError:
            return []
        return _starting(incomplete, ((run.id, run.name) for run in runs))


class TemplateId(click.ParamType):
    """The start of a template's digest or name."""

    name = "template"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """See click. Names, because people know them; digests for who began one."""
        try:
            found = RecordReader().find(incomplete)
        except RecordError:
            return []
        names = [(template.name, template.digest[:12]) for template in found]
        digests = [(template.digest, template.name) for template in found] if incomplete else []
        return _starting(incomplete, [*names, *digests])


def _starting(start: str, values: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    return [CompletionItem(value, help=about) for value, about in values if value.startswith(start)]
