"""Models that ranks share by Thunder's fsdp and ddp, at lengths that no process had: filled in as they would be traced.

On two GPUs collectives travel together over NCCL and average, and nvFuser makes the regions.
"""

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from sharded_training import TiedModel, run_ranks, share
from torch.distributed.device_mesh import init_device_mesh

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.accelerators.sizes.lengths import SHARED, Lengths

MODES = ("zero3", "ddp", "hybrid")
"""ZeRO3 does all that ZeRO2 does, and more."""
VOCABULARY, LENGTHS = 33, (12, 10, 8)


def find_device() -> str:
    return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"


def make_shared(mode: str, **given: Any) -> Any:
    """Shares a model in one way; the first rank of the mesh has another copy than the second one."""
    torch.manual_seed(0)
    device, model = find_device(), TiedModel(VOCABULARY)
    backend = "auto" if device == "cuda" else "eager"
    options = {"cache": fusioncache.Cache(record=False), "backend": backend, "jobs": 0, **given}
    if mode == "hybrid":
        mesh = init_device_mesh(device, (2, 1), mesh_dim_names=("replicate", "shard"))
        where = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        return distributed.fsdp(model, mesh, device=where, **options)
    transforms = [fusioncache.FusionCache(**options)]
    return share(thunder.jit(model.to(device), executors=fusioncache.executors(), transforms=transforms), mode)


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


def describe(jitted: Any) -> dict[str, Any]:
    """Returns counts, and why something was traced; a rank loads what the other one was quicker to fill in."""
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    stats = transform.stats()
    reasons = {**stats.programs_interpreted, **stats.passes_repeated, **stats.programs_refused}
    filled = stats.programs_filled + stats.programs_loaded
    return {"filled": filled, "traced": thunder.cache_misses(jitted), "reasons": reasons}


def run_all(rank: int, folder: Path, run_one: Callable[[int, str, Any, Any], dict[str, Any]]) -> dict[str, Any]:
    os.environ["FUSIONCACHE_DIR"], os.environ["FUSIONCACHE_STORE"] = str(folder), "1"
    return {mode: run_one(rank, mode, make_shared(mode), make_shared(mode, programs=False)) for mode in MODES}


def run_first(rank: int, mode: str, filled: Any, traced: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"equal": [compare(rank, filled, traced, length) for length in LENGTHS]}
    found.update(describe(filled), all=thunder.cache_misses(traced))
    found["own"] = compare(rank, filled, traced, (7, 9)[rank])
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:  # which derives what the other one fills in
            patch.setattr(Lengths, "fill", lambda self, derivation: None)
        found["mixed"] = compare(rank, filled, traced, 11)
    found["first"] = compare(rank, filled, traced, LENGTHS[0])
    if mode == "ddp":
        found["alone"] = [compare(rank, filled, traced, length, alone=True) for length in LENGTHS]
    return {**found, "reasons": describe(filled)["reasons"]}


def run_later(rank: int, mode: str, filled: Any, traced: Any) -> dict[str, Any]:
    return {"equal": compare(rank, filled, traced, 13), **describe(filled)}


ON_GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs")]


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=ON_GPUS)])
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def found(backend, tmp_path_factory):
    """What two jobs over one store return."""
    folder = tmp_path_factory.mktemp("programs")
    return [run_ranks(partial(run_all, folder=folder, run_one=run), backend=backend) for run in (run_first, run_later)]


@pytest.mark.parametrize("mode", MODES)
def test_from_the_third_length_on_nothing_is_traced_and_programs_and_bits_are_those_of_traced_ones(found, mode):
    """Ranks may have lengths of their own, and one may derive what another fills in."""
    for rank in (each[mode] for each in found[0]):
        assert (rank["filled"], rank["traced"], rank["all"]) == (len(LENGTHS) - 2, 2, len(LENGTHS)), rank["reasons"]
        assert SHARED not in rank["reasons"]
        assert rank["equal"] == [(True, True)] * len(LENGTHS)
        assert rank["first"] == rank["own"] == rank["mixed"] == (True, True)
        # Steps that add up nothing have programs of their own.
        assert rank.get("alone", rank["equal"]) == [(True, True)] * len(LENGTHS)


@pytest.mark.parametrize("mode", MODES)
def test_a_later_job_fills_in_its_first_length(found, mode, backend):
    for rank in (each[mode] for each in found[1]):
        assert (rank["equal"], rank["filled"], rank["traced"]) == ((True, True), 1, 0), rank
        assert rank["reasons"] == {} or backend == "nccl"
