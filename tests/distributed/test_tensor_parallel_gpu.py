"""Two GPUs train a gated model with attention over NCCL, with split layers, as torch does on one GPU."""

from functools import cache
from typing import Any

import pytest
import thunder
import torch
from parallel_models import COLUMN, GATHERED, ROW, GatedLlama, Sizes, Values, join, take_steps
from sharded_training import describe, run_ranks

import fusioncache
import fusioncache.distributed as distributed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]
SIZES = Sizes(heads=8, groups=4, head_size=64, gated=1536, vocabulary=1024, length=128)
MODES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "plain": (torch.float64, {}),
    "sequence": (torch.float64, {"sequence": True}),
    "thunder's order": (torch.float64, {"schedule": "thunder"}),
    "torch's regions": (torch.float64, {"backend": "eager"}),
    "bfloat16": (torch.bfloat16, {}),
    "bfloat16 sequence": (torch.bfloat16, {"sequence": True}),
}


@cache
def make_cache() -> fusioncache.Cache:
    """Returns the cache that all models of this process share, so that each template is compiled once."""
    return fusioncache.Cache(record=False, store=False)


def make_options() -> dict[str, Any]:
    return {"cache": make_cache(), "jobs": 0, "programs": False}


def train_all(rank: int) -> dict[str, dict[str, Any]]:
    return {mode: train_one(*MODES[mode]) for mode in MODES}


def train_one(dtype: torch.dtype, given: dict[str, Any]) -> dict[str, Any]:
    model = GatedLlama(SIZES, dtype=dtype).cuda()
    jitted = distributed.tensor_parallel(model, column=COLUMN, row=ROW, gathered=GATHERED, **make_options(), **given)
    steps = list_steps(jitted)
    return {"steps": steps, **describe(jitted)}


def list_steps(model: Any) -> list[Values]:
    return [{name: value.cpu() for name, value in step.items()} for step in take_steps(model, SIZES, 2)]


@cache
def train_by_torch() -> list[Values]:
    """Returns the steps of torch in float64 on one GPU, with nothing compiled."""
    return list_steps(GatedLlama(SIZES, dtype=torch.float64).cuda())


@cache
def train_alone() -> list[Values]:
    """Returns the steps of one GPU in bfloat16, with fusioncache."""
    transform = fusioncache.FusionCache(**make_options())
    model = GatedLlama(SIZES, dtype=torch.bfloat16).cuda()
    return list_steps(thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]))


@pytest.fixture(scope="module")
def trained() -> list[dict[str, dict[str, Any]]]:
    return run_ranks(train_all, backend="nccl")


def measure(found: Values, expected: Values) -> dict[str, float]:
    """Returns the relative error of each value."""
    return {
        name: float((value.double() - expected[name].double()).norm() / expected[name].double().norm())
        for name, value in found.items()
    }


def join_steps(trained: list[dict[str, dict[str, Any]]], mode: str) -> list[Values]:
    wholes = {name: parameter.shape for name, parameter in GatedLlama(SIZES).named_parameters()}
    return [join(list(parts), wholes) for parts in zip(*(rank[mode]["steps"] for rank in trained), strict=True)]


@pytest.mark.parametrize("mode", [mode for mode, (dtype, _) in MODES.items() if dtype == torch.float64])
def test_losses_and_gradients_are_torchs_but_for_the_order_of_sums(trained, mode):
    for found, expected in zip(join_steps(trained, mode), train_by_torch(), strict=True):
        assert max(measure(found, expected).values()) < 1e-11


@pytest.mark.parametrize("mode", ["bfloat16", "bfloat16 sequence"])
def test_in_bfloat16_the_error_is_about_that_of_one_gpu(trained, mode):
    """The first step is compared with float64: sums over ranks are rounded once more."""
    exact, single = train_by_torch()[0], train_alone()[0]
    ours, theirs = measure(join_steps(trained, mode)[0], exact), measure(single, exact)
    assert all(ours[name] < 3 * theirs[name] + 0.01 for name in exact), (ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_both_ranks_have_the_same_templates_and_collectives(trained, mode):
    first, second = (rank[mode] for rank in trained)
    assert first["templates"] == second["templates"] != []
    assert first["sequence"] == second["sequence"] != []
    assert not any("collective" in reason for rank in (first, second) for reason in rank["bypasses"])
