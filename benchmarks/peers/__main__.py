"""Thunder, fusioncache, torch.compile and eager torch on the same work, in the same run, with the same yardstick.

Every point is measured in a fresh process with empty cache directories; peers that keep a cache on disk in a second one
that finds it, too. ``benchmarks/peers/worker.py`` says what the seconds mean, ``benchmarks/peers/check.py`` what is
correct. A peer that fails or computes something wrong is reported as such. Options that are not given follow from the
hardware.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.common.environment import Machine, inspect_machine
from benchmarks.common.options import (
    Numbers,
    Words,
    backend_option,
    command,
    json_option,
    repeat_option,
    require_litgpt,
)
from benchmarks.common.results import Outcome, make_result, plan_options, say, write_result
from benchmarks.common.resume import read_finished
from benchmarks.peers import report, run
from benchmarks.peers.spec import PEERS, RESIDUAL, WIDTHS, Peer, PeerSpec

_INPUTS = {"narrow": (64, 2), "real": (2048, 1)}
"""Tokens in a row, and rows."""


@command(__doc__)
@click.option("--model", default="Llama-2-7b-hf", help=f"A configuration of litgpt's, or {RESIDUAL}.")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: the configuration untouched.")
@click.option("--layers", type=Numbers(), default="1,2", help="As in 2,8,32.")
@click.option("--peers", type=Words(tuple(PEERS)), help="As in fusioncache,eager.  [default: all that work here]")
@click.option("--inference", is_flag=True, help="A forward pass without gradients, and nothing else.")
@backend_option(help="Of Thunder's peers; with eager none of the peers compiles anything.")
@repeat_option("How often each point is measured, in turns.")
@click.option("--limit", type=click.FloatRange(min=0), default=120.0, help="Stop a peer after a point of more seconds.")
@click.option("--steps", type=click.IntRange(min=2), default=30, help="Timed steps after the first.")
@click.option("--warmup", type=click.IntRange(min=0), default=5, help="Untimed steps before those.")
@click.option("--sequence", type=click.IntRange(min=1), help="Tokens in a row.  [default: 64; real: 2048]")
@click.option("--batch", type=click.IntRange(min=1), help="Rows of tokens.  [default: 2; real: 1]")
@click.option("--size", type=click.IntRange(min=1), default=10, help="Of the residual model's matrices.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the model.  [default: float32; bfloat16 for litgpt's with a GPU]",
)
@json_option
@click.option("--resume", is_flag=True, help="Leave out what is in that file already, of the same work and machine.")
def main(json_file: Path | None, resume: bool, **options: Any) -> None:
    """Runs the benchmark."""
    if options["model"] != RESIDUAL:
        require_litgpt(f"--model {options['model']}")
    machine = inspect_machine(options["backend"])
    plan, notes = _plan(machine, **options)
    chosen = plan_options(plan, without=("peer", "layers", "first_step_only"))
    done = read_finished(json_file, machine.environment, chosen, {"peers", "limit"}) if resume else []
    chosen["peers"] = list(dict.fromkeys([*(point["peer"] for point in done), *plan.peers]))

    def save(outcome: Outcome) -> None:
        found = {"points": outcome.points, "notes": [*notes, *outcome.notes]}
        write_result(json_file, make_result(machine.environment, chosen, **found))

    outcome = run.run(plan, save, done)
    outcome.notes[:0] = notes
    report.print_outcome(outcome, _title(plan.spec, machine.environment))
    sys.exit(1 if outcome.failed else 0)


def _plan(machine: Machine, **options: Any) -> tuple[run.Plan, list[str]]:
    """Returns what to run on this machine, and what is left out, with the reason."""
    wanted = options["peers"] or tuple(PEERS)
    is_residual = options["model"] == RESIDUAL
    reasons = {name: _no_part(PEERS[name], machine.backend, is_residual) for name in wanted}
    peers = [name for name in wanted if not reasons[name]]
    notes = [f"{name} skipped: {reason}" for name, reason in reasons.items() if reason]
    for note in notes:
        say(f"{note}\n")
    sequence, batch = _INPUTS[options["width"]]
    spec = PeerSpec(
        peer="",
        layers=0,
        sequence=options["sequence"] or sequence,
        batch=options["batch"] or batch,
        backend=machine.backend,
        device=machine.device,
        dtype=options["dtype"] or machine.choose_dtype(options["model"]),
        **{name: options[name] for name in ("model", "width", "size", "inference", "steps", "warmup")},
    )
    return run.Plan(spec, peers, options["layers"], options["repeat"], options["limit"]), notes


def _no_part(peer: Peer, backend: str, is_residual: bool) -> str | None:
    """Returns why a peer does not take part; None if it does."""
    if peer.needs_nvfuser and backend != "nvfuser":
        return "it needs nvFuser"
    if peer.needs_blocks and is_residual:
        return "the model has no blocks"
    return None


def _title(spec: PeerSpec, environment: dict[str, Any]) -> str:
    what = f"size {spec.size}" if spec.model == RESIDUAL else f"{spec.width}, {spec.batch} x {spec.sequence} tokens"
    step = "inference" if spec.inference else "training step"
    where = environment["gpu"] or environment["processor"] or environment["machine"]
    return f"{spec.model}, {what}, {spec.dtype}, {step}, Thunder with {spec.backend}, {where}"


if __name__ == "__main__":
    main()
