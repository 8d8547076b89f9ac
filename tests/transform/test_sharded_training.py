"""Ranks train as usual under Thunder's ``fsdp`` and ``ddp``: collectives move, and no bit changes.

The model has tied and frozen parameters that three ranks do not divide, a buffer and dropout. Each step adds up
gradients of two batches, under DDP the first one without a collective in its backward pass; then gradients are clipped,
and a fused AdamW changes the shards. The second step has another length. In the end all is saved, overwritten, loaded,
and trained on.
"""

import os
import re
import signal
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.distributed.checkpoint as checkpoint
from models import compile_with
from sharded_training import (
    TiedModel,
    copy_weights,
    describe,
    equal_bits,
    find_state,
    list_collectives,
    make_model,
    make_options,
    run_ranks,
    run_with_losses,
    share,
    spoil,
    take_step,
    train,
)

import fusioncache.distributed as distributed
from fusioncache.distributed.sharing import find_time_limits

MODES, AT_ONCE = ("zero2", "zero3", "ddp"), "at once"
ORDERS: dict[str, dict[str, Any]] = {
    "thunder": {"schedule": "thunder"},
    "auto": {"bucket_bytes": 4096},
    "narrow": {"in_flight_bytes": 1},
}
"""Thunder's order, and ours: by default, and with one message in flight."""
RUNS = [*product(MODES, ("thunder", "auto")), ("zero3", "narrow")]
GPU_ORDERS = {"thunder": {"schedule": "thunder"}, "auto": {"bucket_bytes": 0}, "together": {"bucket_bytes": 2**20}}
WORLD, VOCABULARY, LENGTHS = 3, 37, (8, 12)
GATHERED, TRAINED, WHOLE = 7, 6, 5
"""How many parameters are gathered, how many have gradients, and how many backward needs whole."""


def jit(model: torch.nn.Module, mode: str, **options: Any) -> Any:
    return share(compile_with(model, **make_options(**options))[0], mode)


def share_at_once(model: torch.nn.Module, mode: str) -> Any:
    if mode == "ddp":
        shared = distributed.ddp(model, **make_options())
    else:
        where = {"reshard": mode == "zero3", "device": torch.device("cpu")}
        shared = distributed.fsdp(model, **where, **make_options())
    assert find_time_limits(shared.process_group_for_ddp) == find_time_limits(None)
    return shared


def train_all(rank: int, folder: Path) -> dict[str, Any]:
    runs = [*RUNS, ("zero3", AT_ONCE), ("ddp", AT_ONCE)]
    found = {(mode, order): train_one(rank, mode, order, folder) for mode, order in runs}
    return {**found, "written in place": [run_in_place(mode) for mode in ("zero2", "zero3")], "folder": str(folder)}


def train_one(rank: int, mode: str, order: str, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model = TiedModel(VOCABULARY, dropout=0.1)
    jitted = share_at_once(model, mode) if order == AT_ONCE else jit(model, mode, **ORDERS[order])
    trained = [parameter for parameter in jitted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, fused=True)
    values: list[torch.Tensor] = []
    for step, length in enumerate(LENGTHS):
        torch.manual_seed(100 * rank + step)
        tokens = torch.randint(0, VOCABULARY, (2, 2, length))
        # Thunder's no_sync under fsdp loses the gradients that are made in it.
        with jitted.no_sync() if mode == "ddp" else nullcontext():
            values.append(take_step(jitted, tokens[0]))
        values += [take_step(jitted, tokens[1]), distributed.clip_grad_norm_(jitted, 0.5)]
        values += [parameter.grad.clone() for parameter in trained]
        optimizer.step()
        optimizer.zero_grad()
    found = {"values": values, "weights": copy_weights(jitted), **describe_run(jitted)}
    return {**found, **(save_and_load(jitted, optimizer, tokens[1], folder / mode) if order == "auto" else {})}


def describe_run(jitted: Any) -> dict[str, Any]:
    symbols = thunder.last_backward_traces(jitted)[-1].bound_symbols
    return {**describe(jitted), "in place": sum(symbol.sym.name == "all_reduce_in_place" for symbol in symbols)}


def save_and_load(jitted: Any, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, folder: Path) -> dict[str, Any]:
    """Trains one more step twice: the second time with a new optimizer, from the loaded checkpoint."""
    checkpoint.save(find_state(jitted, optimizer), checkpoint_id=folder)
    first = train_on(jitted, optimizer, tokens)
    spoil(jitted)
    new = torch.optim.AdamW(optimizer.param_groups[0]["params"], lr=0.01, fused=True)
    checkpoint.load(find_state(jitted, new), checkpoint_id=folder)
    return {"loaded": copy_weights(jitted), "trained on": (first, train_on(jitted, new, tokens))}


def train_on(jitted: Any, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(0)
    take_step(jitted, tokens)
    norms = [distributed.clip_grad_norm_(jitted, most, float("inf")) for most in (0.001, 1.0)]
    optimizer.step()
    optimizer.zero_grad()
    return [*norms, *copy_weights(jitted).values()]


def run_in_place(mode: str) -> dict[str, Any]:
    layers = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
    jitted = jit(torch.nn.Sequential(*layers), mode)
    jitted(torch.randn(8, 4)).sum().backward()
    return describe_run(jitted)


def run_differing(rank: int) -> str:
    """Returns the error of a rank if one of them has another vocabulary."""
    jitted = jit(TiedModel(33 * (1 + rank)), "zero2")
    try:
        jitted(torch.zeros(2, 8, dtype=torch.int64))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> list[dict[Any, Any]]:
    return run_ranks(partial(train_all, folder=tmp_path_factory.mktemp("checkpoints")), WORLD)


def computing(calls: list[str]) -> list[str]:
    """Returns the calls that compute: neither collectives nor views of whole parameters."""
    others = ("gather", "reduce", "wait", "agree", "torch_slice", "expand", "unsqueeze", "unpack_trivial")
    return sorted(call for call in calls if not call.startswith(others))


def in_flight(calls: list[str]) -> int:
    now = most = 0
    for call in calls:
        now += call.startswith(("gather", "reduce")) - (call == "wait")
        most = max(most, now)
    return most


@pytest.mark.parametrize(("mode", "order"), RUNS)
def test_all_bits_are_those_of_thunders_order_and_the_sequence_is_the_same_on_all_ranks(trained, mode, order):
    counts = {"forward": GATHERED * (mode != "ddp"), "backward": TRAINED}
    counts["backward"] += WHOLE * (mode == "zero3" and order != "thunder")
    first = trained[0][mode, order]
    for rank in trained:
        ours, theirs = rank[mode, order], rank[mode, "thunder"]
        assert len(ours["values"]) == len(LENGTHS) * (3 + TRAINED)
        assert equal_bits(ours["values"], theirs["values"])
        assert equal_bits(list(ours["weights"].values()), list(theirs["weights"].values()))
        for direction, count in counts.items():
            assert len(list_collectives(ours[direction])) == count
            assert list_collectives(ours[direction]) == list_collectives(first[direction])
            assert computing(ours[direction]) == computing(theirs[direction])
        assert not ours["bypasses"]
        # One rank compiles templates that all need; eager regions are counted, not stored.
        assert ours["templates"] == first["templates"] and ours["compiles"] == len(set(ours["templates"]))
        # Under DDP gradients are summed in place but for the tied one; under ZeRO3 no whole parameter is saved.
        assert ours["in place"] == (TRAINED - 1) * (mode == "ddp" and order != "thunder")
        assert ours["saved"] == WHOLE * (mode == "zero2" or (mode, order) == ("zero3", "thunder"))


def test_bounds_hold(trained):
    calls = trained[0]
    assert all(in_flight(calls[mode, "auto"]["backward"]) >= TRAINED for mode in MODES)
    assert in_flight(calls["zero2", "thunder"]["forward"]) == GATHERED
    # One gather and one reduce.
    assert [in_flight(calls["zero3", "narrow"][direction]) for direction in ("forward", "backward")] == [1, 2]


@pytest.mark.parametrize("mode", ["zero3", "ddp"])
def test_a_model_shared_by_one_call_has_the_same_bits(trained, mode):
    assert all(equal_bits(rank[mode, AT_ONCE]["values"], rank[mode, "auto"]["values"]) for rank in trained)


@pytest.mark.parametrize("mode", MODES)
def test_what_ranks_saved_is_trained_on_with_the_same_bits_and_loaded_by_one_process(trained, mode):
    for ours in (rank[mode, "auto"] for rank in trained):
        assert equal_bits(list(ours["loaded"].values()), list(ours["weights"].values()))
        assert equal_bits(*ours["trained on"])
    model = TiedModel(VOCABULARY)
    checkpoint.load({"model": model.state_dict()}, checkpoint_id=f"{trained[0]['folder']}/{mode}", no_dist=True)
    kept = {name.removeprefix("."): tensor for name, tensor in trained[0][mode, "auto"]["weights"].items()}
    assert kept.keys() <= model.state_dict().keys() | {"head.weight"}
    assert model.head.weight is model.embedding.weight
    for name, tensor in kept.items():
        assert torch.equal(model.state_dict()[name], tensor)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_clipped_by_the_norm_of_all_ranks(trained, mode):
    norms = [rank[mode, "auto"]["values"][2] for rank in trained]
    assert equal_bits(norms, [norms[0]] * WORLD)
    torch.testing.assert_close(norms[0], trained[0]["ddp", "auto"]["values"][2], rtol=1e-5, atol=0)
    for rank in trained:
        greatest, clipped = rank[mode, "auto"]["trained on"][0][:2]
        assert greatest > 0.001
        torch.testing.assert_close(clipped, torch.tensor(0.001), rtol=1e-3, atol=0)


def test_where_something_is_written_in_place_the_order_stays(trained):
    reason = "a trace with collectives writes in place"
    for run in trained[0]["written in place"]:
        assert in_flight(run["forward"]) == len(list_collectives(run["forward"])) == 6
        assert run["bypasses"][reason] == 1
    # A parameter that is gathered again after a write might differ.
    found = [run["bypasses"].get(f"whole parameters are saved: {reason}", 0) for run in trained[0]["written in place"]]
    assert found == [0, 1]


def test_a_rank_that_differs_is_refused_with_the_difference_and_nothing_hangs():
    ended = run_ranks(run_differing)
    assert all(ended)
    (refused, *_) = [text for text in ended if text.startswith("CollectiveMismatch")]
    assert "collective 1 is all_gather float32" in refused
    assert "(17, 16) on rank 0" in refused and "(33, 16) on rank 1" in refused


def lose_a_rank(rank: int) -> str:
    """Returns the error of a rank if the other one stops after the forward pass."""
    jitted = share_at_once(TiedModel(VOCABULARY), "zero2")
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


def train_on_gpus(rank: int) -> dict[str, Any]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = {}
    for mode, order in product(MODES, GPU_ORDERS):
        jitted = jit(make_model(width=256).cuda(), mode, backend="auto", **GPU_ORDERS[order])
        values = [value.cpu() for value in train(jitted, rank, steps=2)]
        found[f"{mode} {order}"] = {"values": values, **describe_run(jitted)}
    return found


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs")
def test_on_two_gpus_all_bits_are_those_of_thunders_order_and_both_have_one_sequence():
    trained = run_ranks(train_on_gpus, backend="nccl")
    for mode, order in product(MODES, ("auto", "together")):
        for rank in trained:
            ours, theirs = rank[f"{mode} {order}"], rank[f"{mode} thunder"]
            assert equal_bits(ours["values"], theirs["values"])
            assert not ours["bypasses"]
        calls = [rank[f"{mode} {order}"]["sequence"] for rank in trained]
        assert calls[0] == calls[1] != []
        assert mode != "zero3" or trained[0][f"{mode} {order}"]["saved"] == 0
