"""Writes the README's tables and plots anew: ``python -m benchmarks.figures.make``, or ``make figures``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import plot
from benchmarks.figures import readme, tables
from benchmarks.processes import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "h200"
README = ROOT / "README.md"


def figures() -> dict[str, str]:
    """Each table by the name that it has in the README."""
    return {
        "residual": tables.residual(_result("residual-recompute-grad")),
        "call-overhead": tables.call_overhead(_result("call-overhead")),
        "llama-2-7b": tables.peers(_result("llama-2-7b-real")),
        "peers": tables.peers(_result("peers-llama-8")),
        "first-step": tables.first_step(_result("first-step-llama")),
        "models": tables.models(_result("models-real-depth"), _result("models-host-time"), _result("models-float32")),
        "thunder-suite": tables.thunder_suite(_result("thunder-suite")),
    }


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def main(directory: Path = RESULTS) -> None:
    """Fills the README and draws the plot."""
    README.write_text(readme.filled(README.read_text(), figures()))
    plot.plot(_result("residual-recompute-grad"), directory / "residual-recompute-grad.svg")


if __name__ == "__main__":
    main()
