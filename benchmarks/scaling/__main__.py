"""How long a model takes to its first step, and how much of that is compiling, as it gets deeper.

Every point is measured in a fresh process with empty cache directories; the mode warm in a second one that finds those
of cached. ``benchmarks/scaling/worker.py`` says what the seconds mean. Options that are not given follow from the
hardware.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from benchmarks.common.drawing import SUFFIXES
from benchmarks.common.environment import Machine, inspect_machine
from benchmarks.common.options import (
    NewFile,
    Numbers,
    Words,
    backend_option,
    command,
    json_option,
    repeat_option,
    require_litgpt,
)
from benchmarks.common.results import Outcome, make_result, plan_options, say, write_result
from benchmarks.common.spec import MODELS
from benchmarks.scaling import plot, report, run
from benchmarks.scaling.spec import KEPT, MODES, NEED_NVFUSER, ON_REQUEST, Spec
from benchmarks.scaling.summary import summarize


class _Until(click.ParamType):
    """This type reads a mode and its deepest point, as in ``uncached=64``."""

    name = "mode=layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        mode, _, layers = value.partition("=")
        if mode not in (*MODES, *ON_REQUEST) or not layers.isdecimal():
            self.fail(f"{value!r} is no mode and number of layers such as uncached=64", param, ctx)
        return mode, int(layers)


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="residual", help="What is compiled.")
@click.option("--layers", type=Numbers(), help="As in 1,2,4,8.  [default: to 16, with a GPU to 32]")
@click.option(
    "--modes",
    type=Words((*MODES, *ON_REQUEST)),
    help="As in cached,uncached,own.  [default: of cached, warm, uncached, lru those that work here]",
)
@click.option("--recompute/--no-recompute", default=None, help="As NVIDIA/Fuser#2916.  [default: for residual]")
@click.option("--grad/--no-grad", default=None, help="Include a backward pass.  [default: with a GPU]")
@backend_option()
@repeat_option()
@click.option("--limit", type=click.FloatRange(min=0), default=60.0, help="Stop a mode after a point of more seconds.")
@click.option("--until", type=_Until(), multiple=True, help="A mode's deepest point, as in uncached=64; repeatable.")
@click.option("--steps", type=click.IntRange(min=0), default=0, help="Later steps to time, after as many untimed.")
@click.option("--size", type=click.IntRange(min=1), default=10, help="Of the residual model's matrices.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    help="Of the model.  [default: float32; bfloat16 for llama with a GPU]",
)
@json_option
@click.option("--plot", "plot_file", type=NewFile(SUFFIXES), metavar="FILE", help="Write a plot, SVG or PNG.")
def main(json_file: Path | None, plot_file: Path | None, **options: Any) -> None:
    """Runs the benchmark."""
    if plot_file and find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install matplotlib (or fusioncache[bench])")
    if options["model"] == "llama":
        require_litgpt("--model llama")
    machine = inspect_machine(options["backend"])
    plan, notes = _plan(machine, **options)
    chosen = plan_options(plan, without=("layers", "mode"))

    def result(outcome: Outcome) -> dict[str, Any]:
        found = {"points": outcome.points, "summary": summarize(outcome.points), "notes": outcome.notes}
        return make_result(machine.environment, chosen, **found)

    outcome = run.run(plan, Outcome(notes=notes), lambda outcome: write_result(json_file, result(outcome)))
    write_result(json_file, result(outcome))
    if plot_file:
        plot.plot(result(outcome), plot_file)
        say(f"plot written to {plot_file}\n")
    report.print_outcome(outcome, plot.title(result(outcome)))
    sys.exit(1 if outcome.failed else 0)


def _plan(machine: Machine, **options: Any) -> tuple[run.Plan, list[str]]:
    """Returns what to run on this machine, and what is left out, with the reason."""
    gpu, backend = machine.device == "cuda", machine.backend
    modes, notes = _modes(options["modes"], backend), []
    if backend != "nvfuser":
        reason = "it is nvFuser's own cache" if gpu else "it is nvFuser's own cache, and there is no CUDA device"
        notes = [f"{mode} skipped: {reason}" for mode in modes if mode in NEED_NVFUSER and options["modes"]]
        modes = [mode for mode in modes if mode not in NEED_NVFUSER]
    for note in notes:
        say(f"{note}\n")
    spec = Spec(
        model=options["model"],
        layers=0,
        recompute=options["model"] == "residual" if options["recompute"] is None else options["recompute"],
        grad=gpu if options["grad"] is None else options["grad"],
        backend=backend,
        device=machine.device,
        dtype=options["dtype"] or machine.choose_dtype(options["model"]),
        size=options["size"],
        steps=options["steps"],
    )
    layers = options["layers"] or ((1, 2, 4, 8, 16, 32) if gpu else (1, 2, 4, 8, 16))
    return run.Plan(spec, layers, modes, options["repeat"], options["limit"], dict(options["until"])), notes


def _modes(asked: Sequence[str] | None, backend: str) -> list[str]:
    """Returns the modes that are asked for, or those of every run; a second process comes right after the first.

    Raises:
        click.UsageError: if there is no first one.
    """
    first, second = KEPT
    modes = list(asked or MODES)
    if asked and second in asked and first not in asked:
        raise click.UsageError(f"--modes {second} needs {first} as well: it is that one's second process")
    if second in modes:
        modes.remove(second)
        # What runs a region op by op leaves nothing that a second process could load.
        if asked or backend != "eager":
            modes.insert(modes.index(first) + 1, second)
    return modes


if __name__ == "__main__":
    main()
