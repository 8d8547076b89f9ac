"""Thunder, fusioncache, torch.compile and eager torch on the same work, in the same run, with the same yardstick.

Every point is measured in a fresh process with empty cache directories; peers that keep a cache on disk in a second one
that finds it, too. ``benchmarks/peer_worker.py`` says what the seconds mean, ``benchmarks/peers_check.py`` what correct
means. A peer that fails or computes something wrong is reported as such. Options that are not given follow from the
hardware.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from benchmarks.common.hardware import look
from benchmarks.common.options import Layers, Modes, NewFile
from benchmarks.peers import report, resume, run
from benchmarks.peers.spec import PEERS, RESIDUAL, WIDTHS, Peer, PeerSpec

SCHEMA = 1
_INPUTS = {"narrow": (64, 2), "real": (2048, 1)}
"""Tokens in a row, and rows."""


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--model", default="Llama-2-7b-hf", help=f"A configuration of litgpt's, or {RESIDUAL}.")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: the configuration untouched.")
@click.option("--layers", type=Layers(), default="1,2", help="As in 2,8,32.")
@click.option("--peers", type=Modes(tuple(PEERS)), help="As in fusioncache,eager.  [default: all that work here]")
@click.option("--inference", is_flag=True, help="A forward pass without gradients, and nothing else.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "nvfuser", "inductor", "eager"]),
    default="auto",
    help="Of Thunder's peers; with eager none of the peers compiles anything.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="How often each point is measured, in turns.")
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
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
@click.option("--resume", is_flag=True, help="Leave out what is in that file already, of the same work and machine.")
def main(json_file: Path | None, resume: bool, **options: Any) -> None:
    if options["model"] != RESIDUAL and find_spec("litgpt") is None:
        raise click.UsageError(f"--model {options['model']} needs litgpt: pip install litgpt==0.5.13 jsonargparse")
    here = look(options["backend"])
    plan, notes = _plan(here, **options)
    environment = here["environment"] | {"options": _options(plan)}
    done = _finished(json_file, environment) if resume else []
    environment["options"]["peers"] = list(dict.fromkeys([*(point["peer"] for point in done), *plan.peers]))

    def save(outcome: run.Outcome) -> None:
        result = {"schema": SCHEMA, "environment": environment, "points": outcome.points}
        if json_file:
            # In one go, so that whoever ends this process while it writes finds the last result whole.
            part = json_file.with_name(json_file.name + ".part")
            part.write_text(json.dumps(result | {"notes": [*notes, *outcome.notes]}, indent=1) + "\n")
            part.replace(json_file)

    outcome = run.run(plan, _say, save, done)
    outcome.notes[:0] = notes
    report.print_outcome(outcome, _title(plan.spec, here["environment"]))
    sys.exit(1 if outcome.failed else 0)


def _finished(file: Path | None, environment: dict[str, Any]) -> list[dict[str, Any]]:
    """What the file has already.

    Raises:
        click.UsageError: if there is no file to go on with, or it has something else.
    """
    if file is None:
        raise click.UsageError("--resume needs --json FILE: the file to go on with")
    if not file.exists():
        return []
    try:
        return resume.finished(file.read_text(), environment)
    except ValueError as error:
        raise click.UsageError(f"--resume cannot go on with {file}: {error}") from None


def _plan(here: dict[str, Any], **options: Any) -> tuple[run.Plan, list[str]]:
    """What to run on this hardware, and what is left out, with the reason."""
    gpu, backend = here["device"] == "cuda", here["backend"]
    wanted = options["peers"] or tuple(PEERS)
    is_residual = options["model"] == RESIDUAL
    reasons = {name: _no_part(PEERS[name], backend, is_residual) for name in wanted}
    peers = [name for name in wanted if not reasons[name]]
    notes = [f"{name} skipped: {reason}" for name, reason in reasons.items() if reason]
    for note in notes:
        _say(f"{note}\n")
    sequence, batch = _INPUTS[options["width"]]
    spec = PeerSpec(
        peer="",
        layers=0,
        sequence=options["sequence"] or sequence,
        batch=options["batch"] or batch,
        backend=backend,
        device=here["device"],
        dtype=options["dtype"] or ("bfloat16" if gpu and not is_residual else "float32"),
        **{name: options[name] for name in ("model", "width", "size", "inference", "steps", "warmup")},
    )
    return run.Plan(spec, peers, options["layers"], options["repeat"], options["limit"]), notes


def _no_part(peer: Peer, backend: str, is_residual: bool) -> str | None:
    """Why a peer does not take part; None if it does."""
    if peer.needs_nvfuser and backend != "nvfuser":
        return "it needs nvFuser"
    if peer.needs_blocks and is_residual:
        return "the model has no blocks"
    return None


def _options(plan: run.Plan) -> dict[str, Any]:
    options = asdict(plan)
    common = options.pop("spec")
    return {
        name: value for name, value in common.items() if name not in ("peer", "layers", "first_step_only")
    } | options


def _title(spec: PeerSpec, environment: dict[str, Any]) -> str:
    what = f"size {spec.size}" if spec.model == RESIDUAL else f"{spec.width}, {spec.batch} x {spec.sequence} tokens"
    step = "inference" if spec.inference else "training step"
    where = environment["gpu"] or environment["processor"] or environment["machine"]
    return f"{spec.model}, {what}, {spec.dtype}, {step}, Thunder with {spec.backend}, {where}"


def _say(text: str) -> None:
    click.echo(text, err=True, nl=False)


if __name__ == "__main__":
    main()
