"""Two and three ranks train a gated model with attention, each with its parts of the layers, as one process does.

Sums are in another order: each rank adds up its features, and then ranks add up what they have. In float64 a sum of
fewer than a thousand terms differs by less than 1e-12 of the greatest one, and an error of ours by far more. Where all
numbers are whole and small no sum is rounded, and every bit is that of one process.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.distributed.checkpoint as checkpoint
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

import fusioncache
import fusioncache.distributed as distributed

SIZES = {2: Sizes(), 3: Sizes(heads=6, groups=3, vocabulary=33, length=6)}
"""Of the model that so many ranks share. Two have two heads and one group each; three, heads of an odd share."""
MODES = ("plain", "sequence", "released")


def make_options() -> dict[str, Any]:
    cache = fusioncache.Cache(record=False, store=False)
    return {"cache": cache, "backend": "eager", "jobs": 0, "programs": False}


def share(model: torch.nn.Module, **given: Any) -> Any:
    layers = {"column": COLUMN, "row": ROW, "gathered": GATHERED}
    return distributed.tensor_parallel(model, **{**layers, **make_options(), **given})


def train_alone(sizes: Sizes) -> tuple[list[Values], set[str]]:
    transform = fusioncache.FusionCache(**make_options())
    jitted = thunder.jit(GatedLlama(sizes), executors=fusioncache.executors(), transforms=[transform])
    return take_steps(jitted, sizes), {call.template.key.digest for call in transform.calls()}


def train_all(rank: int, folder: Path) -> dict[str, Any]:
    world = torch.distributed.get_world_size()
    seen: dict[str, Any] = {mode: train_one(SIZES[world], mode) for mode in MODES}
    return {**seen, "whole numbers": compute_whole_numbers(), **train_on(SIZES[world], folder)}


def train_one(sizes: Sizes, mode: str) -> dict[str, Any]:
    jitted = share(GatedLlama(sizes), sequence=mode == "sequence", release=mode == "released")
    steps = take_steps(jitted, sizes)
    transform = find_transform(jitted)
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    calls = [list_calls(trace) for trace in traces]
    return {
        "steps": steps,
        "calls": calls,
        "sequence": [[call for call in each if call.startswith(("gather", "reduce"))] for each in calls],
        "templates": sorted(call.template.key.digest for call in transform.calls()),
        "compiles": transform.stats().compiles,
        "bypasses": dict(transform.stats().bypasses),
        "shapes": {name: tuple(parameter.shape) for name, parameter in jitted.named_parameters()},
        "first calls": [len(placement.graph.calls) for placement in transform.placements()],
    }


def find_transform(jitted: Any) -> fusioncache.FusionCache:
    (found,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return found


def compute_whole_numbers() -> list[Values]:
    """Returns results and gradients of a model whose sums are exact, cut in the plain way and by rows."""
    seen = []
    for sequence in (False, True):
        jitted = share(WholeNumbers(), column=("embedding", "gate", "up"), row=("down",), sequence=sequence)
        seen.append(compute_once(jitted))
    return seen


def compute_once(model: Any) -> Values:
    tokens = torch.arange(12).reshape(2, 6)
    result = model(tokens)
    (result * (tokens[..., None] % 3 - torch.arange(18) % 2)).sum().backward()
    return {"result": result.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


def train_on(sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Clips and trains for a step, saves all, spoils it, loads it and goes on; and once more without this."""
    jitted = share(GatedLlama(sizes))
    optimizer = torch.optim.AdamW(jitted.parameters(), lr=0.01)
    norms = [take_clipped_step(jitted, optimizer, sizes, seed) for seed in range(2)]
    both = {"model": distributed.state_dict(jitted), "optimizer": distributed.optimizer_state_dict(jitted, optimizer)}
    checkpoint.save(both, checkpoint_id=folder)
    kept = {name: tensor.clone() for name, tensor in jitted.original_state_dict().items()}
    take_clipped_step(jitted, optimizer, sizes, 2)
    first = [parameter.detach().clone() for parameter in jitted.parameters()]
    with torch.no_grad():
        for parameter in jitted.parameters():
            parameter.fill_(7)
    new = torch.optim.AdamW(jitted.parameters(), lr=0.01)
    both = {"model": distributed.state_dict(jitted), "optimizer": distributed.optimizer_state_dict(jitted, new)}
    checkpoint.load(both, checkpoint_id=folder)
    take_clipped_step(jitted, new, sizes, 2)
    again = [parameter.detach().clone() for parameter in jitted.parameters()]
    jitted.load_original_state_dict({name.removeprefix("."): tensor for name, tensor in kept.items()})
    loaded = {name: tensor.clone() for name, tensor in jitted.original_state_dict().items()}
    return {"norms": norms, "kept": kept, "loaded": loaded, "trained on": (first, again)}


def take_clipped_step(jitted: Any, optimizer: torch.optim.Optimizer, sizes: Sizes, seed: int) -> torch.Tensor:
    tokens = draw_tokens(sizes, seed)
    torch.nn.functional.cross_entropy(jitted(tokens).flatten(0, 1), tokens.flatten()).backward()
    clip = torch.nn.utils.clip_grad_norm_
    if isinstance(jitted, thunder.ThunderModule):
        norm = distributed.clip_grad_norm_(jitted, 0.1)
    else:
        norm = clip(jitted.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return norm.float()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module", params=[2, 3])
def trained(request, folder) -> list[dict[str, Any]]:
    return run_ranks(partial(train_all, folder=folder / str(request.param)), request.param)


@pytest.fixture(scope="module")
def alone(trained) -> list[Values]:
    return train_alone(SIZES[len(trained)])[0]


def wholes_of(model: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("mode", MODES)
def test_losses_and_gradients_are_those_of_one_process_but_for_the_order_of_sums(trained, alone, mode):
    wholes = wholes_of(GatedLlama(SIZES[len(trained)]))
    for step, expected in enumerate(alone):
        found = join([rank[mode]["steps"][step] for rank in trained], wholes)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            most = float(expected[name].abs().max())
            assert most > 1e-5, name
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12 * most, msg=name)


@pytest.mark.parametrize("way", [0, 1])
def test_where_no_sum_is_rounded_every_bit_is_that_of_one_process(trained, way):
    model = WholeNumbers()
    expected = compute_once(model)
    found = join([rank["whole numbers"][way] for rank in trained], wholes_of(model))
    assert found.keys() == expected.keys()
    assert all(value.any() for value in expected.values())
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_each_rank_keeps_its_parts(trained):
    world, sizes = len(trained), SIZES[len(trained)]
    shapes = trained[0]["plain"]["shapes"]
    assert shapes["embedding.weight"] == (sizes.vocabulary // world, sizes.width)
    assert shapes["blocks.0.gate.weight"] == (sizes.gated // world, sizes.width)
    assert shapes["blocks.0.up.bias"] == (sizes.gated // world,)
    assert shapes["blocks.0.down.weight"] == (sizes.width, sizes.gated // world)
    assert shapes["blocks.0.down.bias"] == (sizes.width,)
    assert shapes["blocks.0.attention.k.weight"] == (sizes.groups * sizes.head_size // world, sizes.width)


@pytest.mark.parametrize("mode", MODES)
def test_templates_of_all_ranks_together_are_those_of_one(trained, mode):
    first, *others = (rank[mode] for rank in trained)
    assert first["compiles"] == len(set(first["templates"])) > 5
    assert all(other["templates"] == first["templates"] for other in others)


@pytest.mark.parametrize("mode", MODES)
def test_the_sequence_of_collectives_is_the_same_on_all_ranks(trained, mode):
    first, *others = (rank[mode]["sequence"] for rank in trained)
    assert all(other == first for other in others)
    assert not any(rank[mode]["bypasses"] for rank in trained)


def test_ranks_add_up_once_behind_each_row_layer_and_once_in_front_of_each_group_of_column_layers(trained):
    """The embedding, attention and the gated product; then the head. The norm of queries adds up its own gradient."""
    forward, backward = trained[0]["plain"]["sequence"]
    assert [call.split()[1] for call in forward] == ["all_reduce"] * 3 + ["all_gather"]
    assert [call.split()[1] for call in backward] == ["all_reduce"] * 4
    head_size = SIZES[len(trained)].head_size
    assert sum(f"({head_size},)" in call for call in backward) == 1


def test_with_sequences_cut_ranks_scatter_sums_and_gather_rows(trained):
    forward, backward = trained[0]["sequence"]["sequence"]
    scatters = [call.split()[1] for call in forward]
    assert scatters == ["reduce_scatter", "all_gather"] * 3 + ["all_gather"]
    assert sum(call.split()[1] == "reduce_scatter" for call in backward) == 3
    assert sum(call.split()[1] == "all_gather" for call in backward) == 3


@pytest.mark.parametrize("mode", MODES)
def test_waits_come_where_something_is_first_used(trained, mode):
    for calls in trained[0][mode]["calls"]:
        starts = [index for index, call in enumerate(calls) if call.startswith(("gather", "reduce"))]
        waits = [index for index, call in enumerate(calls) if call == "wait"]
        assert len(starts) == len(waits)
    backward = trained[0]["plain"]["calls"][1]
    head = next(index for index, call in enumerate(backward) if call.startswith("reduce"))
    # The gradient of the head's weight is computed while ranks add up that of what it takes.
    assert "matmul" in backward[head : backward.index("wait", head)]


def test_gradients_are_clipped_by_the_norm_that_one_process_finds(trained):
    sizes = SIZES[len(trained)]
    model = GatedLlama(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(2):
        expected = take_clipped_step(model, optimizer, sizes, step)
        for rank in trained:
            torch.testing.assert_close(rank["norms"][step], expected, rtol=1e-5, atol=0)


def test_what_is_saved_is_loaded_and_training_goes_on_with_the_same_bits(trained):
    for rank in trained:
        first, again = rank["trained on"]
        assert all(map(torch.equal, first, again))
        assert all(torch.equal(tensor, rank["kept"][name]) for name, tensor in rank["loaded"].items())


def test_one_process_loads_what_ranks_saved(trained, folder):
    model = GatedLlama(SIZES[len(trained)])
    checkpoint.load({"model": model.state_dict()}, checkpoint_id=folder / str(len(trained)), no_dist=True)
    kept = {name.removeprefix("."): tensor for name, tensor in trained[0]["kept"].items()}
    assert kept.keys() == model.state_dict().keys()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in kept.items())
