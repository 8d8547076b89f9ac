"""Three ranks train as people do, over parameters that three do not divide: all bits are those of Thunder's own order.

The model has tied and frozen parameters, a buffer and dropout. Each step adds up gradients of two batches, the
first one without a collective in its backward pass, at a length of its own; then gradients are clipped, and a fused
AdamW changes the shards.
"""

import pytest
import thunder
import torch
from sharded_training import Block, count_saved, equal_bits, list_calls, run_ranks, share

import fusioncache

MODES = ("zero2", "zero3", "ddp")
WORLD, WIDTH, VOCABULARY = 3, 16, 37
LENGTHS = (8, 12, 8)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.block = Block(WIDTH)
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.norm.weight.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * self.scale
        x = torch.nn.functional.dropout(self.block(x), 0.1, self.training)
        return self.head(self.norm(x))


def make_transform(order: str) -> fusioncache.FusionCache:
    cache = fusioncache.Cache(record=False, store=False)
    return fusioncache.FusionCache(cache=cache, backend="eager", jobs=0, programs=False, schedule=order)


def train_all(rank: int) -> dict[str, dict[str, object]]:
    return {f"{mode} {order}": train_one(rank, mode, order) for mode in MODES for order in ("thunder", "auto")}


def train_one(rank: int, mode: str, order: str) -> dict[str, object]:
    torch.manual_seed(0)
    model, transform = Model(), make_transform(order)
    jitted = share(thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), mode)
    trained = [parameter for parameter in jitted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, fused=True)
    values: list[torch.Tensor] = []
    for step, length in enumerate(LENGTHS):
        torch.manual_seed(100 * rank + step)
        tokens = torch.randint(0, VOCABULARY, (2, 2, length))
        with jitted.no_sync():
            values.append(take_step(jitted, tokens[0]))
        values += [take_step(jitted, tokens[1]), torch.nn.utils.clip_grad_norm_(trained, 0.5)]
        values += [parameter.grad.clone() for parameter in trained]
        optimizer.step()
        optimizer.zero_grad()
    forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    calls = list_calls(forward) + list_calls(backward)
    return {
        "values": values,
        "weights": list(jitted.original_state_dict().values()),
        "sequence": [call for call in calls if call.startswith(("gather", "reduce"))],
        "saved": count_saved(forward),
        "bypasses": dict(transform.stats().bypasses),
    }


def take_step(jitted: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Adds to the gradients; returns the loss."""
    loss = torch.nn.functional.cross_entropy(jitted(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss.detach()


@pytest.fixture(scope="module")
def trained() -> list[dict[str, dict[str, object]]]:
    return run_ranks(train_all, WORLD)


@pytest.mark.parametrize("mode", MODES)
def test_every_bit_is_that_of_thunders_order(trained, mode):
    for rank in trained:
        ours, theirs = rank[f"{mode} auto"], rank[f"{mode} thunder"]
        assert len(ours["values"]) == len(theirs["values"]) > 3 * len(LENGTHS)
        assert equal_bits(ours["values"], theirs["values"])
        assert equal_bits(ours["weights"], theirs["weights"])


@pytest.mark.parametrize("mode", MODES)
def test_the_sequence_is_the_same_on_all_ranks(trained, mode):
    first, *others = (rank[f"{mode} auto"]["sequence"] for rank in trained)
    assert first
    assert all(other == first for other in others)


def test_under_zero3_no_gathered_parameter_is_saved(trained):
    assert [rank["zero3 auto"]["saved"] for rank in trained] == [0] * WORLD
    assert all(rank["zero3 thunder"]["saved"] for rank in trained)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_in_thunders_order(trained, mode):
    assert [rank[f"{mode} auto"]["bypasses"] for rank in trained] == [{}] * WORLD
