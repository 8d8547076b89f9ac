"""Why the number of programs that fusioncache compiles is not the same at every depth. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Point = Mapping[str, Any]

_MODES = ("cached", "own")
_WHY = {
    "inline": "every region adds up its sum anew, which keeps no sum alive; where that makes more than two lengths, by "
    "folds of 1, 2, 4, 8, 16 and 32 terms that all regions share: for twice the depth one program more",
    "fold": "every region's sum is added up anew by folds of 1, 2, 4, 8, 16 and 32 terms that all regions share",
    "carry": "where adding up anew would read four times as much, a region hands its sum to the next, which adds one "
    "term: all regions are alike, and the programs the same at every depth",
    "segmented": "some sums are kept and those between are rebuilt: a few lengths of segments, a program for each",
}


def explained(points: Sequence[Point]) -> Iterator[str]:
    """Lines about each mode of ours whose number of compiles changes with the depth, by the plans for its streams."""
    for mode in _MODES:
        of_mode = [point for point in points if point["mode"] == mode and "seconds" in point]
        if len({point["compiles"] for point in of_mode}) > 1 and any(map(plans, of_mode)):
            counts = (f"{point['compiles']} at {point['layers']} ({plans(point) or 'one sum'})" for point in of_mode)
            yield f"compiles of {mode}, by layers: {', '.join(counts)}"
            named = {choice["plan"] for point in of_mode for choice in point["choices"]}
            yield from (f"  {plan}: {words}" for plan, words in _WHY.items() if plan in named)


def plans(point: Point) -> str | None:
    """What became of the sums of a point's residual streams; None if it has none."""
    return ", ".join(dict.fromkeys(choice["plan"] for choice in point.get("choices", ()))) or None
