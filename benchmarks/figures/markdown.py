"""Tables between two comments of Markdown files, and the format of the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_BLOCK = re.compile(r"(?P<begin><!-- figure: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of figure -->)", re.DOTALL)


def fill[Name](texts: Mapping[Name, str], figures: Mapping[str, str]) -> dict[Name, str]:
    """Returns the texts with the content of each block ``<!-- figure: NAME -->`` replaced.

    Raises:
        ValueError: if a block has no figure, or a figure no block.
    """
    found = {match["name"] for text in texts.values() for match in _BLOCK.finditer(text)}
    if found != set(figures):
        raise ValueError(f"no figure or no place for {', '.join(sorted(found ^ set(figures)))}")
    return {
        name: _BLOCK.sub(lambda match: match["begin"] + figures[match["name"]] + match["end"], text)
        for name, text in texts.items()
    }


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table. A column whose name starts with ``<`` is left-aligned."""
    head = [column.removeprefix("<") for column in columns]
    rule = ["---" if column.startswith("<") else "---:" for column in columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def format_seconds(value: float | None) -> str:
    """Returns seconds with three digits, or with two decimals below a second; empty for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
