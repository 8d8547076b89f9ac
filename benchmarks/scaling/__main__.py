"""How long a model takes to its first step, and how much of that is compiling, as it gets deeper.

Every point is measured in a fresh process with empty cache directories; the mode warm in a second one that finds those
of cached. ``benchmarks/worker.py`` says what the seconds mean. Options that are not given follow from the hardware.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from benchmarks.common.hardware import look
from benchmarks.common.options import Layers, Modes, NewFile
from benchmarks.scaling import plot, report, run
from benchmarks.scaling.spec import KEPT, MODELS, MODES, NEED_NVFUSER, ON_REQUEST, Spec
from benchmarks.scaling.summary import summary

SCHEMA = 1


class _Until(click.ParamType):
    """A mode and its deepest point, as in ``uncached=64``."""

    name = "mode=layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """See click."""
        mode, _, layers = value.partition("=")
        if mode not in (*MODES, *ON_REQUEST) or not layers.isdecimal():
            self.fail(f"{value!r} is no mode and number of layers such as uncached=64", param, ctx)
        return mode, int(layers)


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--model", type=click.Choice(MODELS), default="residual", help="What is compiled.")
@click.option("--layers", type=Layers(), help="As in 1,2,4,8.  [default: to 16, with a GPU to 32]")
@click.option(
    "--modes",
    type=Modes((*MODES, *ON_REQUEST)),
    help="As in cached,uncached,own.  [default: of cached, warm, uncached, lru those that work here]",
)
@click.option("--recompute/--no-recompute", default=None, help="As NVIDIA/Fuser#2916.  [default: for residual]")
@click.option("--grad/--no-grad", default=None, help="Include a backward pass.  [default: with a GPU]")
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), default="auto")
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="Processes for each point; the median counts.")
@click.option("--limit", type=click.FloatRange(min=0), default=60.0, help="Stop a mode after a point of more seconds.")
@click.option("--until", type=_Until(), multiple=True, help="A mode's deepest point, as in uncached=64; repeatable.")
@click.option("--steps", type=click.IntRange(min=0), default=0, help="Later steps to time, after as many untimed.")
@click.option("--size", type=click.IntRange(min=1), default=10, help="Of the residual model's matrices.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    help="Of the model.  [default: float32; bfloat16 for llama with a GPU]",
)
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
@click.option("--plot", "plot_file", type=NewFile(plot.SUFFIXES), metavar="FILE", help="Write a plot, SVG or PNG.")
def main(json_file: Path | None, plot_file: Path | None, **options: Any) -> None:
    if plot_file and find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install matplotlib (or fusioncache[bench])")
    if options["model"] == "llama" and find_spec("litgpt") is None:
        raise click.UsageError("--model llama needs litgpt: pip install litgpt==0.5.13 jsonargparse")
    here = look(options["backend"])
    plan, notes = _plan(here, **options)
    environment = here["environment"] | {"options": _options(plan)}

    def result(outcome: run.Outcome) -> dict[str, Any]:
        all_notes = [*notes, *outcome.notes]
        found = {"points": outcome.points, "summary": summary(outcome.points), "notes": all_notes}
        return {"schema": SCHEMA, "environment": environment, **found}

    def save(outcome: run.Outcome) -> None:
        if json_file:
            json_file.write_text(json.dumps(result(outcome), indent=1) + "\n")

    outcome = run.run(plan, _say, save)
    save(outcome)
    _finish(result(outcome), outcome, notes, plot_file)


def _finish(result: dict[str, Any], outcome: run.Outcome, notes: list[str], plot_file: Path | None) -> None:
    if plot_file:
        plot.plot(result, plot_file)
        _say(f"plot written to {plot_file}\n")
    outcome.notes[:0] = notes
    report.print_outcome(outcome, plot.title(result))
    sys.exit(1 if outcome.failed else 0)


def _plan(here: dict[str, Any], **options: Any) -> tuple[run.Plan, list[str]]:
    """What to run on this hardware, and what is left out, with the reason."""
    model, gpu, backend = options["model"], here["device"] == "cuda", here["backend"]
    modes, notes = _modes(options["modes"], backend), []
    if backend != "nvfuser":
        reason = "it is nvFuser's own cache" if gpu else "it is nvFuser's own cache, and there is no CUDA device"
        notes = [f"{mode} skipped: {reason}" for mode in modes if mode in NEED_NVFUSER and options["modes"]]
        modes = [mode for mode in modes if mode not in NEED_NVFUSER]
    for note in notes:
        _say(f"{note}\n")
    spec = Spec(
        model=model,
        layers=0,
        mode="",
        recompute=model == "residual" if options["recompute"] is None else options["recompute"],
        grad=gpu if options["grad"] is None else options["grad"],
        backend=backend,
        device=here["device"],
        dtype=options["dtype"] or ("bfloat16" if model == "llama" and gpu else "float32"),
        size=options["size"],
        steps=options["steps"],
    )
    layers = options["layers"] or ((1, 2, 4, 8, 16, 32) if gpu else (1, 2, 4, 8, 16))
    return run.Plan(spec, layers, modes, options["repeat"], options["limit"], dict(options["until"])), notes


def _modes(asked: Sequence[str] | None, backend: str) -> list[str]:
    """The modes that are asked for, or those of every run; a second process comes right after the first.

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


def _options(plan: run.Plan) -> dict[str, Any]:
    options = asdict(plan)
    common = options.pop("spec")
    return {**{name: value for name, value in common.items() if name not in ("layers", "mode")}, **options}


def _say(text: str) -> None:
    click.echo(text, err=True, nl=False)


if __name__ == "__main__":
    main()
