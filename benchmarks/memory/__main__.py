"""What recompute of the residual stream saves of a GPU's memory, and what it costs: a table of the trade.

A stack of blocks of OLMo-2 and of Gemma-2, both of which add *normalized* terms to the residual stream, is trained by
Thunder with fusioncache: once without recompute, which is the reference, and then with each plan for the sums. Every
point is a fresh process with empty cache directories, and says how much memory a step takes at most, how much of it is
saved for backward, how long a step is, and whether the output and every gradient have the reference's bits.

They are litgpt's configurations at their own widths and depth, with two changes. No layer of Gemma-2 has a sliding
window: litgpt fills the window's mask row by row, which Thunder traces as regions by the thousand. So that model is
Gemma-2-like, not Gemma-2. And without --head there is next to no vocabulary, no head and no cross entropy: the backward
pass starts from random numbers behind the last norm, because the logits' memory would hide that of the blocks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.common.environment import Machine, inspect_machine
from benchmarks.common.options import Numbers, Words, backend_option, command, json_option, require_litgpt
from benchmarks.common.results import Outcome, make_result, plan_options, write_result
from benchmarks.memory import report, run
from benchmarks.memory.spec import MODELS, PLANS, REFERENCE, WIDTHS, MemorySpec

_DEFAULT_PLANS = ("reference", "again", "auto", "segmented", "carry", "inline")


@command(__doc__)
@click.option("--models", type=Words(tuple(MODELS)), default=",".join(MODELS), help="As in olmo-2,gemma-2.")
@click.option("--layers", type=click.IntRange(min=1), help="Of each model.  [default: as in its configuration]")
@click.option("--sequence", type=click.IntRange(min=1), default=4096, help="Tokens in a row of the input.")
@click.option("--batch", type=click.IntRange(min=1), default=1, help="Rows of the input.")
@click.option("--width", type=click.Choice(WIDTHS), default="real", help="real: the configuration's own.")
@click.option("--head/--no-head", default=False, help="With the vocabulary, the head and the cross entropy.")
@click.option("--plans", type=Words(PLANS), default=",".join(_DEFAULT_PLANS), help="The reference is always there.")
@click.option("--budgets", type=Numbers(), default="64,256,1024", help="MiB of sums alive, each with plan auto.")
@click.option("--no-budgets", is_flag=True, help="No points with a budget.")
@backend_option()
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="bfloat16")
@click.option("--steps", type=click.IntRange(min=1), default=10, help="Later steps to time, after as many untimed.")
@click.option("--seconds", type=click.IntRange(min=0), default=300, help="End a point that takes more; 0: never.")
@json_option
def main(json_file: Path | None, **options: Any) -> None:
    """Runs the benchmark."""
    require_litgpt("this benchmark")
    machine = inspect_machine(options["backend"])
    plan = _plan(machine, **options)
    chosen = plan_options(plan, without=("model", "plan", "budget"))

    def save(outcome: Outcome) -> None:
        write_result(json_file, make_result(machine.environment, chosen, points=outcome.points))

    outcome = run.run(plan, save)
    report.print_outcome(outcome, _title(plan.spec, machine.environment))
    sys.exit(1 if outcome.failed else 0)


def _plan(machine: Machine, **options: Any) -> run.Plan:
    names = ("layers", "sequence", "batch", "width", "head", "dtype", "steps", "seconds")
    spec = MemorySpec(
        model="",
        plan=REFERENCE,
        budget=None,
        backend=machine.backend,
        device=machine.device,
        **{name: options[name] for name in names},
    )
    budgets = () if options["no_budgets"] else options["budgets"]
    return run.Plan(spec, options["models"], options["plans"], budgets)


def _title(spec: MemorySpec, environment: dict[str, Any]) -> str:
    layers = f"{spec.layers} layers, " if spec.layers else ""
    what = f"{layers}{spec.batch} x {spec.sequence} tokens, {spec.dtype}, {spec.width} widths"
    where = environment["gpu"] or f"{environment['cpus']} CPUs"
    return f"training step, {what}, {'with' if spec.head else 'without'} head, {spec.backend}, {where}"


if __name__ == "__main__":
    main()
