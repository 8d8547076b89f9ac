"""Where two golden texts of a model differ, for people: a unified diff of each section, of limited length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import unified_diff

from golden.sections import Section

MOST_LINES = 40
"""So many lines are shown of the diff of one section."""
MOST_SECTIONS = 4
"""So many sections of a model are shown with their diffs. The others are named."""
_CONTEXT = 2


def find_differences(model: str, golden: Sequence[Section], found: Sequence[Section]) -> list[str]:
    """Returns lines that say how what was found differs from what is committed; none if it does not.

    Args:
        model: its name.
        golden: what is committed.
        found: what is printed now.
    """
    expected, printed = ({each.title: each.text for each in sections} for sections in (golden, found))
    titles = list(dict.fromkeys([*expected, *printed]))
    differing = [title for title in titles if expected.get(title) != printed.get(title)]
    order = [title for title in printed if title in expected] != [title for title in expected if title in printed]
    if not differing:
        return [f"{model}: the same parts come in another order"] if order else []
    lines = [f"{model}: {len(differing)} of {len(titles)} parts differ"]
    for title in differing[:MOST_SECTIONS]:
        lines += ["", *_limit(list(_compare(f"{model}, {title}", expected.get(title), printed.get(title))))]
    if len(differing) > MOST_SECTIONS:
        lines += ["", f"{model}, {len(differing) - MOST_SECTIONS} more parts that differ:"]
        lines += [f"  {title}" for title in differing[MOST_SECTIONS:]]
    return lines


def _compare(name: str, golden: str | None, found: str | None) -> Iterator[str]:
    if golden is None or found is None:
        yield f"{name}: {'only in the new text' if golden is None else 'missing in the new text'}"
        yield from (f"{'+' if golden is None else '-'}{line}" for line in (golden or found or "").split("\n"))
        return
    old, new = golden.split("\n"), found.split("\n")
    yield from unified_diff(old, new, f"{name}: golden", f"{name}: now", n=_CONTEXT, lineterm="")


def _limit(lines: list[str]) -> list[str]:
    rest = len(lines) - MOST_LINES
    return lines if rest <= 0 else [*lines[:MOST_LINES], f"... and {rest} more lines of this diff"]
