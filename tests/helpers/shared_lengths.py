"""Models that ranks share in several ways, at one length after the other: filled in, and traced, side by side."""

import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from sharded_training import TiedModel, share
from torch.distributed.device_mesh import init_device_mesh

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.accelerators.sizes.lengths import Lengths

MODES = ("zero2", "zero3", "ddp", "hybrid")
VOCABULARY, LENGTHS = 33, (12, 10, 8, 6, 5)
FILLED = len(LENGTHS) - 2


def find_device() -> str:
    """Returns where this rank computes."""
    return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"


def make_shared(mode: str, **given: Any) -> Any:
    """Shares a model in one way; the first rank of the mesh has another copy than the second one."""
    torch.manual_seed(0)
    device = find_device()
    backend = "auto" if device == "cuda" else "eager"
    options = {"cache": fusioncache.Cache(record=False), "backend": backend, "jobs": 0, **given}
    if mode == "hybrid":
        mesh = init_device_mesh(device, (2, 1), mesh_dim_names=("replicate", "shard"))
        where = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        return distributed.fsdp(TiedModel(VOCABULARY), mesh, device=where, **options)
    transform = fusioncache.FusionCache(**options)
    model = TiedModel(VOCABULARY).to(device)
    jitted = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    return share(jitted, mode)


def find_stats(jitted: Any) -> fusioncache.Stats:
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return transform.stats()


def take_step(jitted: Any, rank: int, length: int, *, alone: bool = False) -> list[torch.Tensor]:
    """Returns loss and gradients of a batch of this rank's; ``alone`` without adding gradients up."""
    torch.manual_seed(100 * rank + length)
    tokens = torch.randint(0, VOCABULARY, (2, length)).to(find_device())
    with jitted.no_sync() if alone else nullcontext():
        loss = torch.nn.functional.cross_entropy(jitted(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
    values = [loss.detach(), *(one.grad.clone() for one in jitted.parameters() if one.grad is not None)]
    jitted.zero_grad(set_to_none=True)
    return values


def write_statements(jitted: Any) -> list[str]:
    """Returns the statements of the final traces, without the numbers by which equal names are told apart."""
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    lines = [line.strip() for trace in traces for line in str(trace).split("\n")]
    return [re.sub(r"(Group|_[0-9a-f]{8})_\d+", r"\1", line) for line in lines if line and not line.startswith("#")]


def compare(rank: int, ones: Any, others: Any, length: int, **given: Any) -> tuple[bool, bool]:
    """Takes the same step of two models; returns whether all bits are equal, and whether their programs are."""
    pairs = zip(*(take_step(each, rank, length, **given) for each in (ones, others)), strict=True)
    return all(torch.equal(*pair) for pair in pairs), write_statements(ones) == write_statements(others)


def count_filled(jitted: Any) -> int:
    """Returns how many programs this rank filled in, or loaded because the other rank was quicker to store them."""
    stats = find_stats(jitted)
    return stats.programs_filled + stats.programs_loaded


def run_all(rank: int, folder: Path) -> dict[str, Any]:
    os.environ["FUSIONCACHE_DIR"], os.environ["FUSIONCACHE_STORE"] = str(folder), "1"
    return {mode: run_one(rank, mode) for mode in MODES}


def run_one(rank: int, mode: str) -> dict[str, Any]:
    filled, traced = make_shared(mode), make_shared(mode, programs=False)
    found: dict[str, Any] = {"equal": [compare(rank, filled, traced, length) for length in LENGTHS]}
    found["filled"] = count_filled(filled)
    found["traced"] = thunder.cache_misses(filled), thunder.cache_misses(traced)
    found["own"] = compare(rank, filled, traced, (7, 9)[rank])
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:  # which derives what the other one fills in
            patch.setattr(Lengths, "fill", lambda self, derivation: None)
        found["mixed"] = compare(rank, filled, traced, 11)
    found["first"] = compare(rank, filled, traced, LENGTHS[0])
    if mode == "ddp":
        found["alone"] = [compare(rank, filled, traced, length, alone=True) for length in LENGTHS]
    found["reasons"] = dict(find_stats(filled).programs_interpreted) | dict(find_stats(filled).passes_repeated)
    return found


def run_later(rank: int, folder: Path) -> dict[str, Any]:
    os.environ["FUSIONCACHE_DIR"], os.environ["FUSIONCACHE_STORE"] = str(folder), "1"
    return {mode: run_later_one(rank, mode) for mode in MODES}


def run_later_one(rank: int, mode: str) -> dict[str, Any]:
    filled, traced = make_shared(mode), make_shared(mode, programs=False)
    equal = compare(rank, filled, traced, 13)
    stats = find_stats(filled)
    reasons = dict(stats.programs_interpreted) | dict(stats.passes_repeated) | dict(stats.programs_refused)
    found = {"equal": equal, "filled": count_filled(filled), "traced": thunder.cache_misses(filled)}
    return {**found, "reasons": reasons}
