"""One process of a training run of ``benchmarks/loss_curve``: writes the losses of all ranks together."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn

from benchmarks.common.counting import use_backend
from benchmarks.common.job import enter_job
from benchmarks.common.models import narrow_widths
from benchmarks.common.thunder_jit import jit, make_transform
from benchmarks.distributed.spec import MODEL
from benchmarks.loss_curve.spec import IN_PARTS, SHARINGS, CurveSpec

_SEED = 2918
_FOLLOWERS = 4
"""How many tokens may follow each: what there is to learn."""


def main() -> None:
    """Runs what the first argument says, and writes the losses into the file that the second one names."""
    spec, answer = CurveSpec(**json.loads(sys.argv[1])), Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    enter_job(spec.device)
    use_backend(spec.backend)
    losses = train(spec, rank)
    if spec.way in SHARINGS:
        distributed.all_reduce(losses)
        losses /= spec.ranks
    if rank == 0:
        answer.write_text(json.dumps(losses.tolist()))
    distributed.destroy_process_group()


def train(spec: CurveSpec, rank: int) -> torch.Tensor:
    """Returns the loss of this rank's rows at each step. All of them are this one's if it is alone."""
    model, words = make_model(spec)
    call = _share(jit(model, spec.backend, make_transform(spec.backend)), spec)
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


def make_model(spec: CurveSpec) -> tuple[nn.Module, int]:
    """Returns a Llama, the same in each process, and how many words it knows."""
    from litgpt import GPT, Config

    torch.manual_seed(_SEED)
    narrow = {**narrow_widths(MODEL, spec.device), "block_size": spec.tokens} if spec.width == "narrow" else {}
    config = Config.from_name(MODEL, n_layer=spec.layers, **narrow)
    with torch.device(spec.device):
        return GPT(config).to(getattr(torch, spec.dtype)), int(config.padded_vocab_size)


def make_rows(spec: CurveSpec, words: int, generator: torch.Generator) -> torch.Tensor:
    """Returns the rows of all ranks: each token has a few that may follow it."""
    count = spec.ranks * spec.rows
    tokens = [torch.randint(0, words, (count,), generator=generator)]
    for _ in range(spec.tokens):
        tokens.append((7 * tokens[-1] + torch.randint(0, _FOLLOWERS, (count,), generator=generator)) % words)
    return torch.stack(tokens, dim=1)


def _share(jitted: Any, spec: CurveSpec) -> Any:
    from thunder.distributed import FSDPType, ddp, fsdp

    if spec.way not in SHARINGS:
        return jitted
    if spec.way == "ddp":
        return ddp(jitted)
    where = torch.device(spec.device, torch.cuda.current_device()) if spec.device == "cuda" else torch.device("cpu")
    return fsdp(jitted, device=where, sharding_strategy=FSDPType[spec.way.upper()])


if __name__ == "__main__":
    main()
