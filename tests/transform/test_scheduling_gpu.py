"""Two GPUs train under Thunder's own ``fsdp`` and ``ddp``, over NCCL: collectives move, and no bit does."""

import pytest
import thunder
import torch
from sharded_training import count_saved, equal_bits, list_calls, make_model, run_ranks, share, train

import fusioncache

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]
MODES = ("zero2", "zero3", "ddp")
ORDERS = {"thunder": {"schedule": "thunder"}, "auto": {"bucket_bytes": 0}, "together": {"bucket_bytes": 2**20}}


def train_all(rank: int) -> dict[str, dict[str, object]]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    return {f"{mode} {order}": train_one(rank, mode, **ORDERS[order]) for mode in MODES for order in ORDERS}


def train_one(rank: int, mode: str, **options: object) -> dict[str, object]:
    cache = fusioncache.Cache(record=False, store=False)
    transform = fusioncache.FusionCache(cache=cache, jobs=0, programs=False, **options)
    jitted = thunder.jit(make_model(width=256).cuda(), executors=fusioncache.executors(), transforms=[transform])
    jitted = share(jitted, mode)
    values = [value.cpu() for value in train(jitted, rank)]
    forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    calls = [call for call in list_calls(forward) + list_calls(backward) if call.startswith(("gather", "reduce"))]
    bypasses = dict(transform.stats().bypasses)
    return {"values": values, "sequence": calls, "saved": count_saved(forward), "bypasses": bypasses}


@pytest.fixture(scope="module")
def trained() -> list[dict[str, dict[str, object]]]:
    return run_ranks(train_all, backend="nccl")


@pytest.mark.parametrize("order", ["auto", "together"])
@pytest.mark.parametrize("mode", MODES)
def test_losses_and_gradients_are_those_of_thunders_order_bit_for_bit(trained, mode, order):
    for rank in trained:
        ours, theirs = rank[f"{mode} {order}"], rank[f"{mode} thunder"]
        assert equal_bits(ours["values"], theirs["values"])
        assert not ours["bypasses"]


@pytest.mark.parametrize("order", ["auto", "together"])
@pytest.mark.parametrize("mode", MODES)
def test_the_sequence_is_the_same_on_both(trained, mode, order):
    first, second = (rank[f"{mode} {order}"] for rank in trained)
    assert first["sequence"] == second["sequence"]
    assert first["sequence"]
    assert mode != "zero3" or first["saved"] == 0
