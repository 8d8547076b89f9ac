"""Writes the README's tables and plots anew: ``python -m benchmarks.figures.make``, or ``make figures``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import plot
from benchmarks.figures import readme, tables
from benchmarks.processes import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "h200"
README = ROOT / "README.md"


def figures() -> dict[str, str]:
    """Each table by the name that it has in the README, with the commits that were measured."""
    return {
        "residual": _figure(tables.residual, "residual-recompute-grad"),
        "llama-2-7b": _figure(tables.peers, "llama-2-7b-real"),
        "peers": _figure(tables.peers, "peers-llama-8"),
        "first-step": _figure(tables.first_step, "first-step-llama"),
        "models": _figure(tables.models, "models-host-time", "models-float32", "models-real-depth", "models-mixtral"),
        "thunder-suite": _figure(tables.thunder_suite, "thunder-suite"),
        **_of_recompute(),
    }


def _of_recompute() -> dict[str, str]:
    """The figures of fusioncache's own recompute, of the results that there are."""
    found = {}
    if (RESULTS / "residual-own.json").exists():
        found["residual-own"] = _figure(tables.residual_modes, "residual-own")
        found["residual-growth"] = _figure(tables.residual_growth, "residual-own")
    memory = sorted(path.stem for path in RESULTS.glob("recompute-memory*.json"))
    if memory:
        found["recompute-memory"] = _figure(tables.recompute_memory, *memory)
    return found


def _figure(table: Callable[..., str], *names: str) -> str:
    results = [_result(name) for name in names]
    commits = dict.fromkeys(f"`{result['environment']['commit'][:7]}`" for result in results)
    return f"{table(*results)}\nMeasured at {', '.join(commits)}.\n"


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def main(directory: Path = RESULTS) -> None:
    """Fills the README and draws the plots."""
    README.write_text(readme.filled(README.read_text(), figures()))
    for name in ("residual-recompute-grad", "residual-own"):
        if (RESULTS / f"{name}.json").exists():
            plot.plot(_result(name), directory / f"{name}.svg")


if __name__ == "__main__":
    main()
