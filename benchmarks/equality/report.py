"""The comparison of models as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from benchmarks.common.report import console

_COUNTS = ("regions", "templates", "hits", "compiles", "reference_compiles", "folded")


def print_rows(rows: Sequence[dict[str, Any]], machine: str) -> None:
    """Prints a table of all points, then what went wrong or was left alone, with the reason."""
    out = console()
    out.print(_table(rows, machine))
    for row in rows:
        name = f"{row['model']}, {_depth(row)} layers"
        for reason, count in row.get("bypasses", {}).items():
            out.print(escape(f"bypassed: {name}: {count} x {reason}"), soft_wrap=True)
        if row.get("not_repeatable"):
            others = f"{len(row['not_repeatable'])} tensors, the first of them {row['not_repeatable'][0]}"
            out.print(escape(f"not repeatable: {name}: the reference computes {others}"), soft_wrap=True)
        if "error" in row:
            out.print(escape(f"error: {name}: {row['error']}"), soft_wrap=True)


def _table(rows: Sequence[dict[str, Any]], machine: str) -> Table:
    timed = any("host" in row for row in rows)
    caption = "bitwise: outputs, loss, gradients and parameters after a step that have the reference's bits"
    caption += "; host: microseconds of a step, and fusioncache's to the reference's" * timed
    table = Table(
        title=f"Thunder with fusioncache on {machine}", caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("model", no_wrap=True)
    headings = ["layers", *(name.replace("reference_", "its ") for name in _COUNTS), "bitwise", "largest"]
    for heading in headings + ["host", "reference", "ratio"] * timed:
        table.add_column(heading, justify="right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before["model"] != row["model"]:
            table.add_section()
        table.add_row(*_cells(row, timed))
    return table


def _cells(row: dict[str, Any], timed: bool) -> list[str]:
    cells = [row["model"], _depth(row)]
    if "tensors" not in row:
        return [*cells, "failed"]
    cells += [str(row[name]) for name in _COUNTS]
    cells += [f"{row['bitwise']}/{row['tensors']}", f"{row['largest_epsilons']:.2g} eps"]
    if timed:
        microseconds = row["host"]["microseconds"]
        cells += [f"{microseconds['fusioncache']:.0f}", f"{microseconds[row['reference']]:.0f}"]
        cells.append(f"{row['host']['ratio']:.3f}")
    return cells


def _depth(row: dict[str, Any]) -> str:
    return "real" if row["layers"] is None else str(row["layers"])
