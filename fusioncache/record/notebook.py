"""What a notebook shows: tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fusioncache.humanize import escape_controls


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows, each with its name in the first cell, under titles if there are any. Every text is escaped."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(_row(*row) for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _row(name: str, *cells: str) -> str:
    others = "".join(f"<td>{escape(escape_controls(cell))}</td>" for cell in cells)
    return f"<tr><th>{escape(escape_controls(name))}</th>{others}</tr>"
