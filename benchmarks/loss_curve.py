"""Whether a model that ranks share learns as it does in one process, with the same rows in each step.

A Llama learns which tokens follow which. One process has whole batches; the same one has them in as many parts as there
are ranks, which tells what rounding makes of itself; and ranks share them under each of ``--sharings``. A shared curve
may be four times as far from that of one process as that process's own in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import torch
import torch.distributed as distributed
from torch import nn

from benchmarks.common.counting import use_backend
from benchmarks.common.job import run_job
from benchmarks.common.models import LLAMA, WIDTHS, Place, make_litgpt
from benchmarks.common.options import Words, count_option, layers_option, limit_option
from benchmarks.common.processes import ProcessFailed, say
from benchmarks.common.runner import Point, Run, benchmark, describe_failure, pick
from benchmarks.common.thunder_jit import jit, make_transform
from benchmarks.distributed.shared import share_by_thunder

ALONE, IN_PARTS = "alone", "alone in parts"
SHARINGS = ("ddp", "zero2", "zero3")
_SPREAD = 4.0
"""How much farther from the curve of one process a shared one may be than that process's own with batches in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSpec(Place):
    """One training run. All runs see the same rows in the same order.

    Attributes:
        way: ``ALONE``; ``IN_PARTS``: one process, too, that adds up gradients of as many parts of the batch as there
            are ranks; or one of ``SHARINGS``.
        ranks: how many processes share the batch, or would.
        width: of the model, ``"narrow"`` or ``"real"``.
        layers: of the model.
        tokens: in a row.
        rows: of each rank.
        steps: of AdamW.
        learning_rate: of these.
    """

    way: str
    ranks: int
    width: str
    layers: int
    tokens: int
    rows: int
    steps: int
    learning_rate: float

    @property
    def processes(self) -> int:
        """How many processes run it."""
        return self.ranks if self.way in SHARINGS else 1


def compare_curves(curves: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Returns how far each curve is at most from that of one process, and whether what rounds explains that.

    What rounding makes of itself in so many steps is what the curve of one process says that has batches in parts: in
    exact numbers it would be the same. A shared curve may be a few times as far.

    Args:
        curves: the losses of each way. Of ways that are missing nothing is said.
    """
    if ALONE not in curves or IN_PARTS not in curves:
        return []
    rounding = find_distance(curves[ALONE], curves[IN_PARTS])
    return [
        {"way": way, "distance": (found := find_distance(curves[ALONE], curve)), "equal": found <= _SPREAD * rounding}
        for way, curve in curves.items()
        if way != ALONE
    ]


def find_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the greatest difference of two curves at any step."""
    return max(abs(first - second) for first, second in zip(one, other, strict=True))


_SEED = 2918
_FOLLOWERS = 4
"""How many tokens may follow each: what there is to learn."""


def measure(argument: Mapping[str, Any], rank: int) -> Iterator[list[float]]:
    """Yields the losses of all ranks together."""
    spec = CurveSpec.read(argument)
    use_backend(spec.backend)
    losses = train(spec, rank)
    if spec.way in SHARINGS:
        distributed.all_reduce(losses)
        losses /= spec.ranks
    yield losses.tolist()


def train(spec: CurveSpec, rank: int) -> torch.Tensor:
    """Returns the loss of this rank's rows at each step. All of them are this one's if it is alone."""
    more = {"block_size": spec.tokens} if spec.width == "narrow" else {}
    model = make_litgpt(LLAMA, spec.layers, spec.device, spec.dtype, width=spec.width, seed=_SEED, **more)
    words = int(model.config.padded_vocab_size)
    call = jit(model, spec.backend, make_transform(spec.backend))
    if spec.way in SHARINGS:
        call = share_by_thunder(call, spec.way, spec.device)
    optimizer = torch.optim.AdamW(list(call.parameters()), lr=spec.learning_rate)
    generator = torch.Generator().manual_seed(_SEED)
    losses = []
    for _ in range(spec.steps):
        batch = make_rows(spec, words, generator).to(spec.device)
        batch = batch.chunk(spec.ranks)[rank] if spec.way in SHARINGS else batch
        parts = batch.chunk(spec.ranks) if spec.way == IN_PARTS else (batch,)
        losses.append(torch.stack([_learn(call, part, len(parts)) for part in parts]).mean())
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses).double()


def _learn(call: Any, rows: torch.Tensor, parts: int) -> torch.Tensor:
    """Adds to the gradients a part of those of the whole batch; returns the loss."""
    logits = call(rows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, -2).float(), rows[:, 1:].flatten())
    (loss / parts).backward()
    return loss.detach()


def make_rows(spec: CurveSpec, words: int, generator: torch.Generator) -> torch.Tensor:
    """Returns the rows of all ranks: each token has a few that may follow it."""
    count = spec.ranks * spec.rows
    tokens = [torch.randint(0, words, (count,), generator=generator)]
    for _ in range(spec.tokens):
        tokens.append((7 * tokens[-1] + torch.randint(0, _FOLLOWERS, (count,), generator=generator)) % words)
    return torch.stack(tokens, dim=1)


@benchmark(__doc__, needs_litgpt=True)
@count_option("--ranks", 2, "Processes that share a batch.", least=2)
@click.option("--sharings", type=Words(SHARINGS), default=SHARINGS)
@click.option("--width", type=click.Choice(WIDTHS), default="narrow")
@layers_option(2)
@count_option("--tokens", 32, "In a row.")
@count_option("--rows", 2, "Of each rank.")
@count_option("--steps", 200, "Of AdamW.")
@click.option("--learning-rate", type=click.FloatRange(min=0.0), default=1e-3)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="On a GPU bfloat16, else float32.")
@limit_option
def main(run: Run, sharings: Sequence[str], dtype: str | None, **options: Any) -> None:
    """Runs the benchmark."""
    common = {**run.machine.place(dtype=dtype), **options}
    for way in (ALONE, IN_PARTS, *sharings):
        run.keep(train_in_job(CurveSpec(way=way, **common), run.time_left()))
        run.more["compared"] = compare_curves({one["way"]: one["losses"] for one in run.points if "losses" in one})
    distances = {one["way"]: one for one in run.more["compared"]}
    for point in run.points:
        point["correct"] = distances.get(point["way"], {"equal": True})["equal"]
    columns = {"<way": pick("way"), "first": lambda point: f"{point['losses'][0]:.4f}"}
    columns |= {"last": lambda point: f"{point['losses'][-1]:.4f}"}
    columns |= {"distance": lambda point: distances.get(point["way"], {}).get("distance")}
    run.finish("losses of training runs", columns, "a curve may be four times as far as rounding explains")


def train_in_job(spec: CurveSpec, limit: float | None) -> Point:
    """Returns the losses of a training run, or how it failed."""
    about = {"way": spec.way}
    try:
        ((losses, *_),) = run_job("benchmarks.loss_curve:measure", asdict(spec), spec.processes, limit=limit)
    except ProcessFailed as failure:
        return describe_failure(about, failure)
    say(f"{spec.way}: loss {losses[0]:.4f} to {losses[-1]:.4f}\n")
    return {**about, "losses": losses}


if __name__ == "__main__":
    main()
