"""Two ranks train under Thunder's own ``fsdp`` and ``ddp``: collectives move, and no bit does."""

import os
import re
import signal
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
import thunder
import torch
from sharded_training import count_saved, equal_bits, list_calls, make_model, run_ranks, run_with_losses, share, train

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.distributed.sharing import find_time_limits

MODES, AT_ONCE = ("zero2", "zero3", "ddp"), ("zero2", "ddp")
ORDERS = {
    "thunder": {"schedule": "thunder"},
    "auto": {"bucket_bytes": 4096},
    "narrow": {"in_flight_bytes": 1},
}
"""Thunder's order, and ours: as it is, and with one message in flight."""
GPU_ORDERS = {"thunder": {"schedule": "thunder"}, "auto": {"bucket_bytes": 0}, "together": {"bucket_bytes": 2**20}}
WEIGHTS, PRODUCTS = 8, 4
"""How many parameters the model has, and how many of them backward needs whole."""


OPTIONS = {"backend": "eager", "jobs": 0, "programs": False}


def make_cache() -> fusioncache.Cache:
    return fusioncache.Cache(record=False, store=False)


def jit(model: torch.nn.Module, mode: str, **options: Any) -> tuple[Any, fusioncache.FusionCache]:
    """Has Thunder share a model that it compiles with a transform of ours, which is returned as well."""
    transform = fusioncache.FusionCache(cache=make_cache(), **{**OPTIONS, **options})
    return share(thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), mode), transform


def train_all(rank: int) -> dict[str, dict[str, object]]:
    seen: Any = {f"{mode} {order}": train_one(rank, mode, **ORDERS[order]) for mode in MODES for order in ORDERS}
    seen |= {f"{mode} at once": {"values": train(share_at_once(mode), rank, steps=1)} for mode in AT_ONCE}
    return {**seen, "written in place": run_in_place(), "differing": run_differing(rank)}


def share_at_once(mode: str) -> torch.nn.Module:
    """Shares the model by one call of ours."""
    if mode == "ddp":
        shared = distributed.ddp(make_model(blocks=1), cache=make_cache(), **OPTIONS)
    else:
        options = {"reshard": False, "device": torch.device("cpu"), "cache": make_cache(), **OPTIONS}
        shared = distributed.fsdp(make_model(blocks=1), **options)
    assert find_time_limits(shared.process_group_for_ddp) == find_time_limits(None)
    return shared


def run_differing(rank: int) -> str:
    """Returns what ends a rank if one of them has another vocabulary. Nothing can follow in the same job."""
    jitted, _ = jit(make_model(blocks=1, vocabulary=33 * (1 + rank)), "zero2")
    try:
        jitted(torch.zeros(2, 8, dtype=torch.int64))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def train_on_gpus(rank: int) -> dict[str, dict[str, object]]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    options: Any = {"blocks": 2, "width": 256, "device": "cuda", "backend": "auto"}
    return {
        f"{mode} {order}": train_one(rank, mode, **options, **GPU_ORDERS[order])
        for mode in MODES
        for order in GPU_ORDERS
    }


def train_one(
    rank: int, mode: str, blocks: int = 1, width: int = 16, device: str = "cpu", **options: Any
) -> dict[str, object]:
    """Trains a model. Gathers and reduces of one block pass three norms and four products of each direction."""
    jitted, transform = jit(make_model(width, blocks=blocks).to(device), mode, **options)
    values = [value.cpu() for value in train(jitted, rank, steps=2)]
    forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    return {
        "templates": sorted(call.template.key.digest for call in transform.calls()),
        "compiles": transform.stats().compiles,
        "values": values,
        "forward": list_calls(forward),
        "backward": list_calls(backward),
        "bypasses": dict(transform.stats().bypasses),
        "saved": count_saved(forward),
        "in place": sum(symbol.sym.name == "all_reduce_in_place" for symbol in backward.bound_symbols),
    }


def run_in_place() -> dict[str, object]:
    """Runs a model whose forward pass writes into its buffers."""
    jitted, transform = jit(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), "zero2")
    jitted(torch.randn(8, 4)).sum().backward()
    return {"forward": list_calls(thunder.last_traces(jitted)[-1]), "bypasses": dict(transform.stats().bypasses)}


@pytest.fixture(scope="module")
def trained() -> list[dict[str, dict[str, object]]]:
    return run_ranks(train_all)


def computing(calls: list[str]) -> list[str]:
    """Returns what computes: neither collectives nor what takes a parameter's padding off."""
    return sorted(call for call in calls if not call.startswith(("gather", "reduce", "wait", "agree", "torch_slice")))


def sequence(calls: list[str]) -> list[str]:
    return [call for call in calls if call.startswith(("gather", "reduce"))]


def in_flight(calls: list[str]) -> int:
    """Returns how many collectives are under way at most."""
    now = most = 0
    for call in calls:
        now += call.startswith(("gather", "reduce")) - (call == "wait")
        most = max(most, now)
    return most


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
def test_all_bits_are_those_of_thunders_order_and_the_sequence_is_the_same_on_all_ranks(trained, mode, order):
    counts = {"forward": WEIGHTS * (mode != "ddp"), "backward": WEIGHTS}
    counts["backward"] += PRODUCTS * (mode == "zero3" and order != "thunder")
    for direction, count in counts.items():
        ours, theirs = (sequence(rank[f"{mode} {order}"][direction]) for rank in trained)
        assert len(ours) == count
        assert ours == theirs
    for rank in trained:
        ours, theirs = rank[f"{mode} {order}"], rank[f"{mode} thunder"]
        assert len(ours["values"]) == 2 * (1 + WEIGHTS)
        assert equal_bits(ours["values"], theirs["values"])
        for direction in counts:
            assert computing(ours[direction]) == computing(theirs[direction])
        assert not ours["bypasses"]
        # Under DDP gradients are added up where they lie, under ZeRO3 no gathered parameter is saved.
        assert ours["in place"] == WEIGHTS * (mode == "ddp" and order != "thunder")
        assert ours["saved"] == PRODUCTS * (mode == "zero2" or (mode, order) == ("zero3", "thunder"))


def test_bounds_hold(trained):
    for mode in MODES:
        # With ZeRO3 one gather and one reduce.
        assert in_flight(trained[0][f"{mode} narrow"]["backward"]) == 1 + (mode == "zero3")
        assert in_flight(trained[0][f"{mode} auto"]["backward"]) >= WEIGHTS
    assert in_flight(trained[0]["zero2 narrow"]["forward"]) == 1
    assert in_flight(trained[0]["zero2 thunder"]["forward"]) == WEIGHTS


def test_a_model_shared_by_one_call_is_the_same(trained):
    for rank in trained:
        for mode in AT_ONCE:
            assert equal_bits(rank[f"{mode} at once"]["values"], rank[f"{mode} thunder"]["values"][: 1 + WEIGHTS])


@pytest.mark.parametrize("mode", MODES)
def test_ranks_ask_for_the_same_so_that_one_of_them_compiles_it(trained, mode):
    """The second rank finds it in the store of the machine. Eager regions are counted, not kept."""
    first, second = (rank[f"{mode} auto"] for rank in trained)
    assert first["templates"] == second["templates"]
    assert first["compiles"] == second["compiles"] == len(set(first["templates"]))


def test_where_something_is_written_in_place_the_order_stays(trained):
    run = trained[0]["written in place"]
    assert in_flight(run["forward"]) == len(sequence(run["forward"])) == 4
    assert run["bypasses"]["a trace with collectives writes in place"] == 1


def test_a_rank_that_differs_is_refused_with_the_difference_and_nothing_hangs(trained):
    ended = [rank["differing"] for rank in trained]
    assert all(ended)
    (refused, *_) = [text for text in ended if text.startswith("CollectiveMismatch")]
    assert "collective 1 is all_gather float32" in refused
    assert "(17, 16) on rank 0" in refused and "(33, 16) on rank 1" in refused


def lose_a_rank(rank: int) -> str:
    """Returns what ends a rank whose other one stands still behind the forward pass."""
    jitted = share_at_once("zero2")
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    jitted(tokens).sum().backward()
    group = jitted.process_group_for_ddp
    loss = jitted(tokens).sum()
    torch.distributed.barrier()
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=3), group)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_rank_that_is_lost_ends_the_job():
    assert re.search("(?i)timed out|timeout", run_with_losses(lose_a_rank, patience=120))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs")
def test_on_two_gpus_all_bits_are_those_of_thunders_order_and_both_have_one_sequence():
    trained = run_ranks(train_on_gpus, backend="nccl")
    for mode, order in product(MODES, ("auto", "together")):
        for rank in trained:
            ours, theirs = rank[f"{mode} {order}"], rank[f"{mode} thunder"]
            assert equal_bits(ours["values"], theirs["values"])
            assert not ours["bypasses"]
        calls = [sequence(rank[f"{mode} {order}"]["forward"] + rank[f"{mode} {order}"]["backward"]) for rank in trained]
        assert calls[0] == calls[1] != []
        assert mode != "zero3" or trained[0][f"{mode} {order}"]["saved"] == 0
