"""Gathers and scatters that are computed at once with products, over gloo: a stand-in takes symmetric memory's place.

It is put in where the traces ask who computes such products. All before that is what GPUs run as well: what is joined,
its gradients, its place among collectives, and on what ranks agree.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import thunder
import torch
from joined_over_gloo import PlainProducts, join_by, join_over_gloo, torchs_products_on_cpu
from parallel_models import (
    COLUMN,
    GATHERED,
    ROW,
    GatedLlama,
    Sizes,
    Values,
    WholeNumbers,
    draw_tokens,
    join,
    take_steps,
)
from sharded_training import list_calls, run_ranks
from torch.distributed.distributed_c10d import _get_default_group

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.accelerators.schedule.agreement import find_stretches
from fusioncache.distributed.joined_products import Products, SymmetricProducts
from fusioncache.distributed.joining import Talk, agree_on_joining, list_trials

SIZES = {2: Sizes(), 3: Sizes(heads=6, groups=3, vocabulary=33, length=6)}
LENGTHS = (8, 4, 6, 5)
"""Of sequences of which two ranks have parts; the last one they cannot share."""
CPU = torch.device("cpu")


class Shared(torch.nn.Module):
    """Column layers of which one has a weight that is computed, in front of the gather or only behind it."""

    def __init__(self, late: bool):
        super().__init__()
        torch.manual_seed(0)
        self.late = late
        self.gate, self.up = (torch.nn.Linear(6, 12, bias=False, dtype=torch.float64) for _ in range(2))
        self.down = torch.nn.Linear(12, 6, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(torch.relu(torch.nn.functional.linear(x, self.gate.weight)))
        weight = None if self.late else self.up.weight * 2
        gated = torch.nn.functional.linear(x, self.gate.weight)
        weight = self.up.weight * 2 if weight is None else weight
        return self.down(torch.relu(gated) * torch.nn.functional.linear(x, weight))


def make_options() -> dict[str, Any]:
    return {"cache": fusioncache.Cache(record=False, store=False), "backend": "eager", "jobs": 0, "programs": False}


def share(model: torch.nn.Module, **given: Any) -> Any:
    layers = {"column": COLUMN, "row": ROW, "gathered": GATHERED, "sequence": True, "joined": True}
    return distributed.tensor_parallel(model, **{**layers, **make_options(), **given})


def jit_alone(model: torch.nn.Module) -> Any:
    transform = fusioncache.FusionCache(**make_options())
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])


def find_stats(jitted: Any) -> fusioncache.Stats:
    (found,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return found.stats()


def find_bypasses(jitted: Any) -> dict[str, int]:
    return dict(find_stats(jitted).bypasses)


def train_ranks(rank: int, world: int) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        products = join_over_gloo(patch)
        found = {"steps": train_one(world, products), "whole numbers": compute_whole_numbers()}
        if world == 2:
            found |= {"lengths": compute_lengths(), "computed": [compute_shared(late) for late in (False, True)]}
            found["autocast"] = compute_under_autocast()
        with torchs_products_on_cpu(patch) as products:
            found["torch's"] = [trial() for trial in list_trials(products, _get_default_group(), CPU)]
    found["agreed"] = {name: agree() for name, agree in list_agreements(rank).items()} if world == 2 else {}
    return found


def train_one(world: int, products: PlainProducts) -> dict[str, Any]:
    jitted = share(GatedLlama(SIZES[world]))
    tried = dict(products.calls)
    products.calls.clear()
    steps = take_steps(jitted, SIZES[world], 2)
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return {
        "values": steps,
        "tried": tried,
        "calls": dict(products.calls),
        "places": list(products.places),
        "kinds": [[call.split()[0] for call in list_calls(trace)] for trace in traces],
        "messages": [list(find_stretches(trace.bound_symbols)[0].messages) for trace in traces],
        "timelines": [placement.timeline() for placement in transform.placements()],
        "bypasses": find_bypasses(jitted),
    }


def compute_whole_numbers() -> Values:
    layers = {"column": ("embedding", "gate", "up"), "row": ("down",), "gathered": ()}
    return compute_once(share(WholeNumbers(), **layers))


def compute_once(model: Any) -> Values:
    tokens = torch.arange(12).reshape(2, 6)
    result = model(tokens)
    (result * (tokens[..., None] % 3 - torch.arange(18) % 2)).sum().backward()
    return {"result": result.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


@torch.no_grad()
def compute_lengths() -> list[dict[str, Any]]:
    jitted, found = share(GatedLlama(SIZES[2])), []
    for length in LENGTHS:
        result = jitted(draw_tokens(SIZES[2])[:, :length])
        calls = list_calls(thunder.last_traces(jitted)[-1])
        found.append({"result": result, "joined": calls.count("joined"), "compiles": find_stats(jitted).compiles})
    return found


def compute_shared(late: bool) -> dict[str, Any]:
    jitted = share(Shared(late), column=("gate", "up"), row=("down",), gathered=())
    x = torch.arange(24.0, dtype=torch.float64).reshape(1, 4, 6).requires_grad_()
    jitted(x).square().sum().backward()
    calls = list_calls(thunder.last_traces(jitted)[-1])
    return {"gradient": x.grad, "joined": calls.count("joined"), "bypasses": find_bypasses(jitted)}


@torch.no_grad()
def compute_under_autocast() -> dict[str, Any]:
    jitted = share(GatedLlama(SIZES[2], dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        result = jitted(draw_tokens(SIZES[2])).float()
    joined = list_calls(thunder.last_traces(jitted)[-1]).count("joined")
    return {"result": result, "joined": joined, "bypasses": find_bypasses(jitted)}


def list_agreements(rank: int) -> dict[str, Callable[[], str]]:
    """Returns on what ranks come to agree by the name of what keeps one of them from joining."""
    second = rank == 1
    return {
        "nothing": lambda: agree(PlainProducts()),
        "one alone": lambda: agree(PlainProducts("too old" if second else "")),
        "two reasons": lambda: agree(PlainProducts(f"reason of {rank}")),
        "far": lambda: agree(PlainProducts(between="far" if second else "")),
        "wrong": lambda: agree(PlainProducts(error=float(second))),
        "raises": lambda: agree(None if second else PlainProducts()),
        "not asked": lambda: agree(PlainProducts(), wanted=not second),
        "gloo": lambda: agree(SymmetricProducts()),
        "again": lambda: agree(PlainProducts()),
    }


def agree(products: Products | None, *, wanted: bool = True) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if products is not None:
            join_by(patch, products)
        return agree_on_joining(_get_default_group(), CPU, wanted=wanted)


@pytest.fixture(scope="module")
def pair() -> list[dict[str, Any]]:
    return run_ranks(partial(train_ranks, world=2), 2)


@pytest.fixture(scope="module", params=[2, 3])
def trained(request, pair) -> list[dict[str, Any]]:
    return pair if request.param == 2 else run_ranks(partial(train_ranks, world=3), 3)


def test_losses_and_gradients_are_those_of_one_process_but_for_the_order_of_sums(trained):
    sizes = SIZES[len(trained)]
    alone = take_steps(jit_alone(GatedLlama(sizes)), sizes, 2)
    wholes = {name: parameter.shape for name, parameter in GatedLlama(sizes).named_parameters()}
    for *parts, expected in zip(*(rank["steps"]["values"] for rank in trained), alone, strict=True):
        found = join(parts, wholes)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            most = float(expected[name].abs().max())
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12 * most, msg=name)


def test_where_no_sum_is_rounded_every_bit_is_that_of_one_process(trained):
    expected = compute_once(WholeNumbers())
    wholes = {name: parameter.shape for name, parameter in WholeNumbers().named_parameters()}
    found = join([rank["whole numbers"] for rank in trained], wholes)
    assert all(value.any() for value in expected.values())
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_one_call_gathers_for_all_layers_that_take_the_same_and_one_scatters_their_gradient(trained):
    """Queries, keys and values; gate and up; the head. Of attention and of the gated product the row layers."""
    forward = {"gather for 3": 1, "gather for 2": 1, "gather for 1": 1, "scatter of 1": 2}
    backward = {"gather for 1": 2, "scatter of 1": 1, "scatter of 2": 1, "scatter of 3": 1}
    in_step = {name: forward.get(name, 0) + backward.get(name, 0) for name in forward | backward}
    for rank in trained:
        assert rank["steps"]["calls"] == {name: 2 * count for name, count in in_step.items()}
        assert [kinds.count("joined") for kinds in rank["steps"]["kinds"]] == [5, 5]
        # What the embedding finds is scattered, and logits are gathered; gradients of whole parameters are added up.
        assert [kinds.count("gather") for kinds in rank["steps"]["kinds"]] == [1, 1]
        assert rank["steps"]["bypasses"] == {}


def test_each_operation_is_tried_before_with_all_ranks_in_their_places(trained):
    for rank in trained:
        assert rank["steps"]["tried"] == {"prepare": 1, "gather for 2": 1, "scatter of 1": 1, "scatter of 2": 1}
        assert rank["steps"]["places"] == [f"place of {number}" for number in range(len(trained))]


def test_joined_products_are_among_what_ranks_compare_and_in_the_same_order(trained):
    first, *others = trained
    forward, backward = first["steps"]["messages"]
    world, sizes = len(trained), SIZES[len(trained)]
    part = (2, sizes.length // world, sizes.width)
    weights = [(sizes.width // world, sizes.width), *[(sizes.groups * sizes.head_size // world, sizes.width)] * 2]
    taken = " ".join(map(str, weights))
    assert f"all_gather_and_multiply float64 {part} by {taken} transposed along 1" in forward
    assert sum("multiply" in message for message in forward) == sum("multiply" in message for message in backward) == 5
    for other in others:
        assert other["steps"]["messages"] == first["steps"]["messages"]
        assert other["steps"]["kinds"] == first["steps"]["kinds"]
    # They are in the timeline, and nothing is moved away from them that they take.
    assert [text.count("joined") for text in first["steps"]["timelines"]] == [5, 5]


def test_all_lengths_that_ranks_divide_are_joined_alike_and_others_not(pair):
    """From the third one on nothing is compiled."""
    model = jit_alone(GatedLlama(SIZES[2]))
    for rank in pair:
        first, second, third, _ = (found["compiles"] for found in rank["lengths"])
        assert 0 < first < second == third
    for number, length in enumerate(LENGTHS):
        expected = model(draw_tokens(SIZES[2])[:, :length]).detach()
        for rank in pair:
            found = rank["lengths"][number]
            assert found["joined"] == (0 if length % 2 else 5)
            torch.testing.assert_close(found["result"], expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


def test_a_gather_whose_layers_have_weights_that_are_computed_only_behind_it_stays(pair):
    for late in (False, True):
        x = torch.arange(24.0, dtype=torch.float64).reshape(1, 4, 6).requires_grad_()
        Shared(late)(x).square().sum().backward()
        for rank in pair:
            found = rank["computed"][late]
            torch.testing.assert_close(found["gradient"], x.grad, rtol=0, atol=1e-12 * float(x.grad.abs().max()))
            reason = "a gather in front of column layers is not joined: a weight is computed only behind it"
            assert found["bypasses"] == ({reason: 1} if late else {})
            assert found["joined"] == 3 - late


def test_under_autocast_products_of_what_is_converted_are_joined(pair):
    """Each of the layers that take the same converts it for itself, and is one of eight."""
    model = GatedLlama(SIZES[2], dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = jit_alone(model)(draw_tokens(SIZES[2])).float()
    for rank in pair:
        assert (rank["autocast"]["result"] - expected).norm() < 0.02 * expected.norm()
        assert (rank["autocast"]["joined"], rank["autocast"]["bypasses"]) == (8, {})


def test_torchs_operations_are_asked_for_what_they_give(trained):
    """Here they compute in their plain way, one behind the other."""
    assert [rank["torch's"] for rank in trained] == [[""] * 4] * len(trained)


def test_who_waits_in_vain_for_another_rank_is_told_so():
    store = torch.distributed.HashStore()
    first, second = (Talk(store, "pair", rank, 2, timedelta(seconds=0.05)) for rank in range(2))
    second.tell("of the first model")
    Talk(store, "pair", 1, 2, timedelta()).tell("of the next one")
    first.tell("")
    assert first.hear() == ["", "of the first model"]
    with pytest.raises(RuntimeError, match="share models in the same order"):
        first.agree("")


@pytest.mark.parametrize(
    ("places", "reads", "reason"),
    [
        (["one/0", "other/1"], True, "the ranks are on several nodes"),
        (["one/0", "one/0"], True, "a rank does not see the GPUs of the others"),
        (["one/0", "one/2"], True, "a rank does not see the GPUs of the others"),
        (["one/0", "one/1"], False, "a GPU cannot read another one's memory"),
        (["one/0", "one/1"], True, ""),
    ],
)
def test_gpus_have_to_read_each_others_memory(monkeypatch, places, reads, reason):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: reads and own != other)
    assert SymmetricProducts().find_obstacle_between(torch.device("cuda", 0), places) == reason


@pytest.mark.parametrize(
    ("what", "first", "second"),
    [
        ("nothing", "", ""),
        ("one alone", "too old", "too old"),
        ("two reasons", "reason of 0", "reason of 0"),
        ("far", "far", "far"),
        ("wrong", *["the result of a trial reduction is wrong"] * 2),
        ("raises", *["nothing joins products on a cpu"] * 2),
        ("not asked", *["a rank does not ask for it"] * 2),
        ("gloo", *["the ranks exchange over gloo, not NCCL"] * 2),
        ("again", "", ""),
    ],
)
def test_ranks_join_together_or_not_at_all(pair, what, first, second):
    assert [rank["agreed"][what] for rank in pair] == [first, second]
