"""Figures of benchmarks as files: the same figure is the same file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUFFIXES = (".svg", ".png")
"""What files of figures end in."""


@contextmanager
def draw(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Yields the axes of a new figure, which is written when the context ends.

    Args:
        path: the file.
        size: of the figure, in inches.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fusioncache"  # else each file has identifiers of its own
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    try:
        yield axes
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    finally:
        pyplot.close(figure)
