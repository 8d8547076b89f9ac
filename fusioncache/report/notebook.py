"""What a notebook shows of counts: small tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fusioncache.cache.stats import Stats, TemplateStats
from fusioncache.report.page import environment


def stats_html(stats: Stats) -> str:
    """What a cache counted."""
    return str(_macros().counts(stats))


def templates_html(templates: Iterable[TemplateStats]) -> str:
    """A row for each template."""
    return str(_macros().templates(templates))


def _macros() -> Any:
    return environment().get_template("notebook.html").module
