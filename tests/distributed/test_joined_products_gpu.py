"""Two GPUs compute gathers and scatters of a sequence at once with products, in torch's symmetric memory."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
import thunder
import torch
from parallel_models import COLUMN, GATHERED, ROW, GatedLlama, Sizes, Values, draw_tokens, join, take_steps
from sharded_training import list_calls, run_ranks

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.distributed.joined_products import SymmetricProducts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]
SIZES = Sizes(heads=8, groups=4, head_size=64, gated=1536, vocabulary=1024, length=256)
LENGTHS = (248, 200, 232, 176, 63)
"""Of sequences of which two ranks have parts; the last one they cannot share."""
MODES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "plain": (torch.float64, {}),
    "joined": (torch.float64, {"joined": True}),
    "torch's regions": (torch.float64, {"joined": True, "backend": "eager"}),
    "bfloat16 plain": (torch.bfloat16, {}),
    "bfloat16 joined": (torch.bfloat16, {"joined": True}),
}
CALLS = {"gather 3": 1, "gather 2": 1, "gather 1": 3, "scatter 1": 3, "scatter 2": 1, "scatter 3": 1}
"""Of the operations in a step, by how many products each has: forward and backward."""


@cache
def make_cache() -> fusioncache.Cache:
    """Returns what all models of this process share, so that each template is compiled once."""
    return fusioncache.Cache(record=False, store=False)


def count_products(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls of joined products, by how many each computes."""
    counted: Counter[str] = Counter()
    gather, scatter = SymmetricProducts.gather, SymmetricProducts.scatter

    def counting_gather(self: SymmetricProducts, part: Any, matrices: Any, group: Any, dim: int) -> Any:
        counted[f"gather {len(matrices)}"] += 1
        return gather(self, part, matrices, group, dim)

    def counting_scatter(self: SymmetricProducts, factors: Any, matrices: Any, group: Any, dim: int) -> Any:
        counted[f"scatter {len(factors)}"] += 1
        return scatter(self, factors, matrices, group, dim)

    patch.setattr(SymmetricProducts, "gather", counting_gather)
    patch.setattr(SymmetricProducts, "scatter", counting_scatter)
    return counted


def train_all(rank: int) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        counted = count_products(patch)
        found: dict[str, Any] = {mode: train_one(*MODES[mode], counted) for mode in MODES}
        return {**found, "lengths": train_lengths(counted)}


def share(dtype: torch.dtype, **given: Any) -> Any:
    options = {"cache": make_cache(), "jobs": 0, "programs": False, "sequence": True, **given}
    model = GatedLlama(SIZES, dtype=dtype).cuda()
    return distributed.tensor_parallel(model, column=COLUMN, row=ROW, gathered=GATHERED, **options)


def train_one(dtype: torch.dtype, given: dict[str, Any], counted: Counter[str]) -> dict[str, Any]:
    jitted = share(dtype, **given)
    counted.clear()
    steps = list_steps(jitted)
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    calls = [call for trace in traces for call in list_calls(trace) if call.startswith(("gather", "reduce", "joined"))]
    return {"steps": steps, "counted": dict(counted), "sequence": calls, "bypasses": dict(find_stats(jitted).bypasses)}


def find_stats(jitted: Any) -> fusioncache.Stats:
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return transform.stats()


def train_lengths(counted: Counter[str]) -> list[dict[str, Any]]:
    """Takes a step at each length, of a model with a cache of its own."""
    jitted, found = share(torch.float64, joined=True, cache=fusioncache.Cache(record=False, store=False)), []
    for length in LENGTHS:
        counted.clear()
        step = take_length(jitted, length)
        stats = find_stats(jitted)
        # What nvFuser cannot compile for any sizes is compiled for each: see docs/upstream.md.
        shared = stats.compiles - sum(stats.own_sizes.values())
        found.append({"step": step, "counted": dict(counted), "compiles": shared})
    return found


def take_length(model: Any, length: int) -> Values:
    tokens = draw_tokens(SIZES)[:, :length].cuda()
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1).flatten())
    loss.backward()
    step = {"loss": loss.detach().cpu(), **{name: one.grad.cpu() for name, one in model.named_parameters()}}
    model.zero_grad(set_to_none=True)
    return step


def list_steps(model: Any) -> list[Values]:
    return [{name: value.cpu() for name, value in step.items()} for step in take_steps(model, SIZES, 2)]


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Any]]:
    return run_ranks(train_all, backend="nccl")


@pytest.fixture(scope="module")
def alone() -> list[Values]:
    """What torch gives in float64 on one GPU, with nothing compiled."""
    return list_steps(GatedLlama(SIZES, dtype=torch.float64).cuda())


def join_ranks(parts: list[Values]) -> Values:
    return join(parts, {name: parameter.shape for name, parameter in GatedLlama(SIZES).named_parameters()})


def measure(found: Values, expected: Values) -> dict[str, float]:
    """Returns how far each value is from what it should be."""
    return {
        name: float((value.double() - expected[name].double()).norm() / expected[name].double().norm())
        for name, value in found.items()
    }


def list_joined(trained: list[dict[str, Any]], mode: str) -> list[Values]:
    return [join_ranks(list(parts)) for parts in zip(*(rank[mode]["steps"] for rank in trained), strict=True)]


@pytest.mark.parametrize("mode", ["plain", "joined", "torch's regions"])
def test_losses_and_gradients_are_torchs_but_for_the_order_of_sums(trained, alone, mode):
    for found, expected in zip(list_joined(trained, mode), alone, strict=True):
        assert max(measure(found, expected).values()) < 1e-11


def test_in_bfloat16_the_error_is_about_that_of_products_that_are_not_joined(trained, alone):
    """Of the first step, against float64."""
    ours, theirs = (measure(list_joined(trained, f"bfloat16 {mode}")[0], alone[0]) for mode in ("joined", "plain"))
    assert all(ours[name] < 3 * theirs[name] + 0.01 for name in ours), (ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_torchs_operations_are_called_where_products_are_joined(trained, mode):
    first, second = (rank[mode] for rank in trained)
    assert first["sequence"] == second["sequence"] != []
    is_joined = MODES[mode][1].get("joined", False)
    assert first["sequence"].count("joined") == (sum(CALLS.values()) if is_joined else 0)
    for rank in (first, second):
        assert rank["counted"] == ({name: 2 * count for name, count in CALLS.items()} if is_joined else {})
        assert not any("joined" in reason for reason in rank["bypasses"]), rank["bypasses"]


def test_all_lengths_that_ranks_divide_are_joined_and_from_the_third_one_on_nothing_is_compiled(trained):
    model = GatedLlama(SIZES, dtype=torch.float64).cuda()
    for number, length in enumerate(LENGTHS):
        expected = take_length(model, length)
        found = join_ranks([rank["lengths"][number]["step"] for rank in trained])
        assert max(measure(found, expected).values()) < 1e-11
        for rank in trained:
            assert rank["lengths"][number]["counted"] == ({} if length % 2 else CALLS)
    for rank in trained:
        _, second, third, fourth, _ = (one["compiles"] for one in rank["lengths"])
        assert second == third == fourth
