"""Regenerates the documents' tables and plots: ``python -m benchmarks.figures.make``, or ``make figures``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.processes import ROOT
from benchmarks.figures import catalogue, markdown, plot, starts, steps, tables

_PAGES = ("measurements", "schedule", "lengths", "inference", "tensor-parallel", "several-gpus", "prices", "sharing")
RESULTS = ROOT / "benchmarks" / "results" / "h200"
CPU = RESULTS.with_name("cpu")
H100 = RESULTS.with_name("h100")
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in _PAGES))
_STEPS = (
    *("step-narrow", "step-narrow-graphs", "step-narrow-32"),
    *("step-real-128", "step-real-2048", "step-inference"),
)
_PRICES = ("programs", "sizes", "tracing", "lean-steps", "residual", "precompile")
_SUMMARIES = ("llama-8", "llama-32", "llama-2-7b", "convolutional", "encoder-decoder", "gpt2")
_RESIDUAL = ("residual-own", "residual-cached", "residual-uncached")


def make_figures() -> dict[str, str]:
    """Returns each table by its name in a document, with the measured commits."""
    results = {f"{path.parent.name}/{path.stem}": json.loads(path.read_text()) for path in list_results()}
    commands = {
        f"commands-{name}": catalogue.tabulate_commands(entries, results)
        for name, entries in catalogue.CATALOGUE.items()
    }
    return {
        **commands,
        "starts": _figure(starts.compare_starts, "starts-real"),
        "peers": _figure(starts.tabulate_peers, "peers-llama-8"),
        "first-step-alone": _figure(tables.tabulate_first_step, "first-step-alone"),
        **{f"lengths-{model}": _figure(steps.tabulate_lengths, f"summary-{model}") for model in _SUMMARIES},
        "buckets": _figure(steps.tabulate_buckets, "lengths-bucketed"),
        "experts": _figure(steps.tabulate_experts, "experts", folder=H100),
        "shared-orders": _figure(steps.tabulate_orders, "distributed", "distributed-512-orders", folder=H100),
        "shared-jobs": _figure(steps.tabulate_jobs, "distributed-jobs", "distributed-jobs-hybrid"),
        "sequence-parallel": _figure(steps.tabulate_sequences, "sequence-parallel", folder=H100),
        "models": _figure(
            tables.tabulate_models, "models-host-time", "models-float32", "models-real-depth", "models-mixtral"
        ),
        "recompute-memory": _figure(tables.tabulate_memory, "recompute-memory-olmo-2", "recompute-memory-gemma-2"),
        "residual-own": _figure(starts.tabulate_modes, *_RESIDUAL),
        "cpu-start": _figure(starts.tabulate_cpu_starts, "cpu-start", folder=CPU),
        "hugging-face": _figure(starts.tabulate_hugging_face, "hugging-face", folder=CPU),
        "saved-seconds": _figure(tables.tabulate_saved_seconds, "saved-seconds", folder=CPU),
        "saved-seconds-gpu": _figure(tables.tabulate_saved_seconds, "saved-seconds"),
        "saved-seconds-pythia": _figure(tables.tabulate_saved_seconds, "saved-seconds-pythia"),
        "second-process": _figure(starts.tabulate_parts, "second-process", "second-process-real"),
        "step-times": _figure(steps.tabulate_times, *_STEPS),
        "inference-graphs": _figure(steps.tabulate_inference, "inference-graphs", "inference-graphs-real"),
        "fuzz": _figure(tables.tabulate_fuzzing, "fuzz", folder=CPU),
        "remote": _figure(tables.tabulate_remote, "remote", folder=CPU),
        "prices": _figure(tables.tabulate_prices, *(f"prices-{name}" for name in _PRICES)),
    }


def list_results() -> list[Path]:
    """Returns the files of all stored results."""
    return sorted(RESULTS.parent.glob("*/*.json"))


def _figure(table: Callable[..., str], *names: str, folder: Path = RESULTS) -> str:
    results = [_result(name, folder) for name in names]
    commits = dict.fromkeys(f"`{catalogue.name_commit(result)}`" for result in results)
    return f"{table(*results)}\nMeasured at {', '.join(commits)}.\n"


def _result(name: str, folder: Path = RESULTS) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def main(directory: Path = RESULTS) -> None:
    """Inserts the tables into the documents and draws the plots."""
    for document, text in markdown.fill({path: path.read_text() for path in DOCUMENTS}, make_figures()).items():
        document.write_text(text)
    own, *others = map(_result, _RESIDUAL)
    points = [point for result in (own, *others) for point in result["points"]]
    plot.plot_starts({**own, "points": points}, directory / "residual-own.svg")


if __name__ == "__main__":
    main()
