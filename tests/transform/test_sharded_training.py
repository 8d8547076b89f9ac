"""Three ranks train as people do, over parameters that three do not divide: all bits are those of Thunder's own order.

The model has tied and frozen parameters, a buffer and dropout. Each step adds up gradients of two batches, under DDP
the first one without a collective in its backward pass; then gradients are clipped, and a fused AdamW changes the
shards. The second step has a length of its own. In the end all is saved, spoiled, loaded, and trained on.
"""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.distributed.checkpoint as checkpoint
from sharded_training import TiedModel, equal_bits, run_ranks, share

import fusioncache
import fusioncache.distributed as distributed

MODES = ("zero3", "ddp")
"""ZeRO3 does all that ZeRO2 does, and more."""
WORLD, VOCABULARY = 3, 37
LENGTHS = (8, 12)
"""Of the tokens of each step."""


def train_all(rank: int, folder: Path) -> dict[str, dict[str, object]]:
    return {f"{mode} {order}": train_one(rank, mode, order, folder) for mode in MODES for order in ("thunder", "auto")}


def train_one(rank: int, mode: str, order: str, folder: Path) -> dict[str, object]:
    torch.manual_seed(0)
    model, cache = TiedModel(VOCABULARY, dropout=0.1), fusioncache.Cache(record=False, store=False)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", jobs=0, programs=False, schedule=order)
    jitted = share(thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), mode)
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
    weights = copy_weights(jitted)
    saved = {} if order == "thunder" else save_and_load(jitted, optimizer, tokens[1], folder / mode)
    return {"values": values, "weights": weights, "bypasses": dict(transform.stats().bypasses), **saved}


def copy_weights(jitted: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in jitted.original_state_dict().items()}


def save_and_load(jitted: Any, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, folder: Path) -> dict[str, Any]:
    """Trains for a step more, twice: the second time with a new optimizer, from what was saved and loaded."""

    def find_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        state = distributed.optimizer_state_dict(jitted, optimizer)
        return {"model": distributed.state_dict(jitted), "optimizer": state}

    checkpoint.save(find_state(optimizer), checkpoint_id=folder)
    first = train_on(jitted, optimizer, tokens)
    with torch.no_grad():
        for parameter in jitted.parameters():
            parameter.fill_(7)
    new = torch.optim.AdamW(optimizer.param_groups[0]["params"], lr=0.01, fused=True)
    checkpoint.load(find_state(new), checkpoint_id=folder)
    return {"loaded": copy_weights(jitted), "trained on": (first, train_on(jitted, new, tokens))}


def train_on(jitted: Any, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Returns norms of gradients, and the parameters behind a step."""
    torch.manual_seed(0)
    take_step(jitted, tokens)
    norms = [distributed.clip_grad_norm_(jitted, most, float("inf")) for most in (0.001, 1.0)]
    optimizer.step()
    optimizer.zero_grad()
    return [*norms, *copy_weights(jitted).values()]


def take_step(jitted: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Adds to the gradients; returns the loss."""
    loss = torch.nn.functional.cross_entropy(jitted(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss.detach()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(folder) -> list[dict[str, dict[str, object]]]:
    return run_ranks(partial(train_all, folder=folder), WORLD)


@pytest.mark.parametrize("mode", MODES)
def test_every_bit_is_that_of_thunders_order_also_where_training_goes_on_from_what_was_saved(trained, mode):
    for rank in trained:
        ours, theirs = rank[f"{mode} auto"], rank[f"{mode} thunder"]
        assert len(ours["values"]) == len(theirs["values"]) > 3 * len(LENGTHS)
        assert equal_bits(ours["values"], theirs["values"])
        for weights in (theirs["weights"], ours["loaded"]):
            assert equal_bits(list(ours["weights"].values()), list(weights.values()))
        assert equal_bits(*ours["trained on"])
        assert not ours["bypasses"]


@pytest.mark.parametrize("mode", MODES)
def test_one_process_loads_what_ranks_saved(trained, folder, mode):
    model = TiedModel(VOCABULARY)
    checkpoint.load({"model": model.state_dict()}, checkpoint_id=folder / mode, no_dist=True)
    kept = {name.removeprefix("."): tensor for name, tensor in trained[0][f"{mode} auto"]["weights"].items()}
    assert kept.keys() <= model.state_dict().keys() | {"head.weight"}
    assert model.head.weight is model.embedding.weight
    for name, tensor in kept.items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_gradients_are_clipped_by_the_norm_of_all_ranks(trained):
    for mode in MODES:
        norms = [rank[f"{mode} auto"]["values"][2] for rank in trained]
        assert equal_bits(norms, [norms[0]] * WORLD)
        torch.testing.assert_close(norms[0], trained[0]["ddp auto"]["values"][2], rtol=1e-5, atol=0)
        for rank in trained:
            greatest, clipped = rank[f"{mode} auto"]["trained on"][0][:2]
            assert greatest > 0.001
            torch.testing.assert_close(clipped, torch.tensor(0.001), rtol=1e-3, atol=0)
