"""Two GPUs train a gated model with attention over NCCL, each with its parts of the layers, as one GPU does."""

from typing import Any

import pytest
import thunder
import torch
from parallel_models import COLUMN, GATHERED, ROW, GatedLlama, Sizes, Values, join, take_steps
from sharded_training import list_calls, run_ranks

import fusioncache
import fusioncache.distributed as distributed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]
SIZES = Sizes(heads=8, groups=4, head_size=64, gated=1536, vocabulary=1024, length=128)
MODES = {
    "plain": (torch.float64, {}),
    "sequence": (torch.float64, {"sequence": True}),
    "thunder's order": (torch.float64, {"schedule": "thunder"}),
    "bfloat16": (torch.bfloat16, {}),
    "bfloat16 sequence": (torch.bfloat16, {"sequence": True}),
}


def make_options() -> dict[str, Any]:
    return {"cache": fusioncache.Cache(record=False, store=False), "jobs": 0, "programs": False}


def train_all(rank: int) -> dict[str, dict[str, Any]]:
    return {mode: train_one(*MODES[mode]) for mode in MODES}


def train_one(dtype: torch.dtype, given: dict[str, Any]) -> dict[str, Any]:
    model = GatedLlama(SIZES, layers=2, dtype=dtype).cuda()
    jitted = distributed.tensor_parallel(model, column=COLUMN, row=ROW, gathered=GATHERED, **make_options(), **given)
    steps = [{name: value.cpu() for name, value in step.items()} for step in take_steps(jitted, SIZES, 2)]
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    calls = [call for trace in traces for call in list_calls(trace) if call.startswith(("gather", "reduce"))]
    stats = transform.stats()
    templates = sorted(call.template.key.digest for call in transform.calls())
    return {"steps": steps, "sequence": calls, "templates": templates, "bypasses": dict(stats.bypasses)}


def train_alone(dtype: torch.dtype) -> list[Values]:
    transform = fusioncache.FusionCache(**make_options())
    model = GatedLlama(SIZES, layers=2, dtype=dtype).cuda()
    jitted = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    return [{name: value.cpu() for name, value in step.items()} for step in take_steps(jitted, SIZES, 2)]


@pytest.fixture(scope="module")
def trained() -> list[dict[str, dict[str, Any]]]:
    return run_ranks(train_all, backend="nccl")


@pytest.mark.parametrize(
    ("dtype", "modes", "bound"),
    [
        (torch.float64, ("plain", "sequence", "thunder's order"), 1e-11),
        # Eight bits: results differ by a few roundings of what layers give to each other.
        (torch.bfloat16, ("bfloat16", "bfloat16 sequence"), 0.05),
    ],
)
def test_losses_and_gradients_are_those_of_one_gpu_but_for_the_order_of_sums(trained, dtype, modes, bound):
    wholes = {name: parameter.shape for name, parameter in GatedLlama(SIZES, layers=2).named_parameters()}
    alone = train_alone(dtype)
    for mode in modes:
        for step, expected in enumerate(alone):
            found = join([rank[mode]["steps"][step] for rank in trained], wholes)
            for name, value in found.items():
                distance = (value.double() - expected[name].double()).norm() / expected[name].double().norm()
                assert distance < bound, (mode, step, name)


@pytest.mark.parametrize("mode", MODES)
def test_both_ranks_have_the_same_templates_and_collectives(trained, mode):
    first, second = (rank[mode] for rank in trained)
    assert first["templates"] == second["templates"] != []
    assert first["sequence"] == second["sequence"] != []
    assert not first["bypasses"] and not second["bypasses"]
