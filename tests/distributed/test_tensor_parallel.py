"""Two and three ranks train a gated model with attention, each with its parts of the layers, as one process does.

Sums are in another order: each rank adds up its features, and then ranks add up what they have. In float64 a sum of
fewer than a thousand terms differs by less than 1e-12 of the greatest one, and an error of ours by far more. Where all
numbers are whole and small no sum is rounded, and every bit is that of one process.
"""

from collections.abc import Sequence
from dataclasses import replace
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
"""Of the model that so many ranks share. Two have two heads and one group each, three have one group each."""
DROPPING = replace(SIZES[2], dropout=0.2)
LENGTHS = (4, 5)
"""Of sequences of which two ranks have parts; the last one they cannot share."""


def make_options() -> dict[str, Any]:
    cache = fusioncache.Cache(record=False, store=False)
    return {"cache": cache, "backend": "eager", "jobs": 0, "programs": False}


def share(model: torch.nn.Module, **given: Any) -> Any:
    layers = {"column": COLUMN, "row": ROW, "gathered": GATHERED}
    return distributed.tensor_parallel(model, **{**layers, **make_options(), **given})


def jit_alone(model: torch.nn.Module) -> Any:
    transform = fusioncache.FusionCache(**make_options())
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])


def train_two(rank: int, folder: Path) -> dict[str, Any]:
    jitted = share(GatedLlama(SIZES[2]))
    released = GatedLlama(SIZES[2])
    cut = share(released, sequence=True, release=True)
    return {
        "let go": [name for name, parameter in released.named_parameters() if parameter.is_meta],
        "plain": train_one(jitted, SIZES[2]),
        **train_on(jitted, SIZES[2], folder),
        "sequence": train_one(cut, SIZES[2]),
        "lengths": [compute_length(cut, length) for length in LENGTHS],
        "dropping": train_one(share(GatedLlama(DROPPING)), DROPPING, steps=1),
        "whole numbers": [compute_whole_numbers(sequence=sequence) for sequence in (False, True)],
        "tied": [compute_whole_numbers(tied=True)],
        "autocast": compute_under_autocast(share(GatedLlama(SIZES[2], dtype=torch.float32))),
    }


def train_three(rank: int) -> dict[str, Any]:
    return {"plain": train_one(share(GatedLlama(SIZES[3])), SIZES[3]), "whole numbers": [compute_whole_numbers()]}


def list_collectives(calls: list[str]) -> list[str]:
    return [call for call in calls if call.startswith(("gather", "reduce"))]


def list_kinds(calls: list[str]) -> list[str]:
    """Returns what collectives do."""
    return [call.split()[1] for call in list_collectives(calls)]


def train_one(jitted: Any, sizes: Sizes, steps: int = 3) -> dict[str, Any]:
    seen = take_steps(jitted, sizes, steps)
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return {
        "steps": seen,
        "calls": [list_calls(traces(jitted)[-1]) for traces in (thunder.last_traces, thunder.last_backward_traces)],
        "templates": sorted(call.template.key.digest for call in transform.calls()),
        "compiles": transform.stats().compiles,
        "bypasses": dict(transform.stats().bypasses),
        "shapes": {name: tuple(parameter.shape) for name, parameter in jitted.named_parameters()},
    }


@torch.no_grad()
def compute_length(jitted: Any, length: int) -> dict[str, Any]:
    """Returns what a model gives for a sequence of another length, and the kinds of its collectives."""
    result = jitted(draw_tokens(SIZES[2])[:, :length])
    return {"result": result, "kinds": list_kinds(list_calls(thunder.last_traces(jitted)[-1]))}


def compute_under_autocast(model: Any) -> torch.Tensor:
    """Returns results of products in bfloat16, for which weights are converted."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return model(draw_tokens(SIZES[2])).float()


def compute_whole_numbers(*, sequence: bool = False, tied: bool = False) -> Values:
    """Returns results and gradients of a model whose sums are exact. A tied head is cut as the table is."""
    layers = {"column": ("embedding", "gate", "up"), "row": ("down",), "gathered": ("head",) if tied else ()}
    return compute_once(share(WholeNumbers(tied=tied), sequence=sequence, **layers))


def compute_once(model: Any) -> Values:
    tokens = torch.arange(12).reshape(2, 6)
    result = model(tokens)
    (result * (tokens[..., None] % 3 - torch.arange(18) % 2)).sum().backward()
    return {"result": result.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


def train_on(jitted: Any, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Clips and trains for a step more, saves all, spoils it, loads it and goes on; and once more without this."""
    optimizer, new = (torch.optim.AdamW(jitted.parameters(), lr=0.01) for _ in range(2))
    norm = take_clipped_step(jitted, optimizer, sizes, 0)
    checkpoint.save(describe(jitted, optimizer), checkpoint_id=folder)
    kept = copy_state(jitted)
    take_clipped_step(jitted, optimizer, sizes, 1)
    first = [parameter.detach().clone() for parameter in jitted.parameters()]
    spoil(jitted)
    checkpoint.load(describe(jitted, new), checkpoint_id=folder)
    take_clipped_step(jitted, new, sizes, 1)
    again = [parameter.detach().clone() for parameter in jitted.parameters()]
    spoil(jitted)
    jitted.load_original_state_dict({name.removeprefix("."): tensor for name, tensor in kept.items()})
    return {"norm": norm, "kept": kept, "loaded": copy_state(jitted), "trained on": (first, again)}


def describe(jitted: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": distributed.state_dict(jitted), "optimizer": distributed.optimizer_state_dict(jitted, optimizer)}


def copy_state(jitted: Any) -> Values:
    return {name: tensor.clone() for name, tensor in jitted.original_state_dict().items()}


@torch.no_grad()
def spoil(jitted: Any) -> None:
    for parameter in jitted.parameters():
        parameter.fill_(7)


def take_clipped_step(jitted: Any, optimizer: torch.optim.Optimizer, sizes: Sizes, seed: int) -> torch.Tensor:
    tokens = draw_tokens(sizes, seed)
    torch.nn.functional.cross_entropy(jitted(tokens).flatten(0, 1), tokens.flatten()).backward()
    if isinstance(jitted, thunder.ThunderModule):
        norm = distributed.clip_grad_norm_(jitted, 0.1)
    else:
        norm = torch.nn.utils.clip_grad_norm_(jitted.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return norm.float()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def pair(folder) -> list[dict[str, Any]]:
    return run_ranks(partial(train_two, folder=folder), 2)


@pytest.fixture(scope="module", params=[2, 3])
def trained(request, pair) -> list[dict[str, Any]]:
    return pair if request.param == 2 else run_ranks(train_three, 3)


def join_all(ranks: Sequence[Sequence[Values]], model: torch.nn.Module) -> list[Values]:
    """Returns what all ranks have together, of each step or way to compute."""
    wholes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return [join(parts, wholes) for parts in zip(*ranks, strict=True)]


def assert_equal_but_for_sums(found: Sequence[Values], alone: Sequence[Values]) -> None:
    """Compares steps of ranks with those of one process."""
    for ours, expected in zip(found, alone, strict=True):
        assert ours.keys() == expected.keys()
        for name, value in ours.items():
            most = float(expected[name].abs().max())
            assert most > 1e-5, name
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12 * most, msg=name)


def test_losses_and_gradients_are_those_of_one_process_but_for_the_order_of_sums(trained):
    sizes = SIZES[len(trained)]
    alone = take_steps(jit_alone(GatedLlama(sizes)), sizes)
    for mode in trained[0].keys() & {"plain", "sequence"}:
        assert_equal_but_for_sums(join_all([rank[mode]["steps"] for rank in trained], GatedLlama(sizes)), alone)


def test_with_equal_seeds_ranks_drop_what_one_process_does(pair):
    alone = take_steps(jit_alone(GatedLlama(DROPPING)), DROPPING, 1)
    assert_equal_but_for_sums(join_all([rank["dropping"]["steps"] for rank in pair], GatedLlama(DROPPING)), alone)


def test_weights_that_are_converted_are_cut_as_well(pair):
    expected = compute_under_autocast(jit_alone(GatedLlama(SIZES[2], dtype=torch.float32)))
    for rank in pair:
        # Eight bits, and a few roundings one behind the other.
        assert (rank["autocast"] - expected).norm() < 0.02 * expected.norm()


def assert_equal_bits(ranks: Sequence[Sequence[Values]], model: torch.nn.Module) -> None:
    """Compares what ranks compute in some ways with what one process does."""
    expected = compute_once(model)
    assert all(value.any() for value in expected.values())
    for found in join_all(ranks, model):
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_where_no_sum_is_rounded_every_bit_is_that_of_one_process(trained):
    assert_equal_bits([rank["whole numbers"] for rank in trained], WholeNumbers())
    if len(trained) == 2:  # a table that is the head as well has the gradients of both
        assert_equal_bits([rank["tied"] for rank in trained], WholeNumbers(tied=True))


def test_each_rank_keeps_its_parts(trained):
    world, sizes = len(trained), SIZES[len(trained)]
    shapes = trained[0]["plain"]["shapes"]
    assert shapes["embedding.weight"] == (sizes.vocabulary // world, sizes.width)
    assert shapes["blocks.0.gate.weight"] == (sizes.gated // world, sizes.width)
    assert shapes["blocks.0.up.bias"] == (sizes.gated // world,)
    assert shapes["blocks.0.down.weight"] == (sizes.width, sizes.gated // world)
    assert shapes["blocks.0.down.bias"] == (sizes.width,)
    assert shapes["blocks.0.attention.k.weight"] == (sizes.groups * sizes.head_size // world, sizes.width)


def test_a_module_lets_go_of_what_is_cut_if_it_is_to(pair):
    wholes = {name: tuple(parameter.shape) for name, parameter in GatedLlama(SIZES[2]).named_parameters()}
    for rank in pair:
        shapes = rank["sequence"]["shapes"]
        assert rank["let go"] == [name for name in wholes if shapes[name] != wholes[name]] != []


def test_templates_and_collectives_of_all_ranks_are_those_of_one(trained):
    first = trained[0]
    for mode in first.keys() & {"plain", "sequence"}:
        assert first[mode]["compiles"] == len(set(first[mode]["templates"])) > 5
        assert all(map(list_collectives, first[mode]["calls"]))
        for rank in trained:
            assert rank[mode]["templates"] == first[mode]["templates"]
            assert list(map(list_collectives, rank[mode]["calls"])) == list(map(list_collectives, first[mode]["calls"]))
            assert not rank[mode]["bypasses"]


def test_ranks_add_up_once_behind_each_row_layer_and_once_in_front_of_each_group_of_column_layers(trained):
    """The embedding, attention and the gated product; then the head. The norm of queries adds up its own gradient."""
    forward, backward = trained[0]["plain"]["calls"]
    assert list_kinds(forward) == ["all_reduce"] * 3 + ["all_gather"]
    assert list_kinds(backward) == ["all_reduce"] * 4
    head_size = SIZES[len(trained)].head_size
    assert sum(f"({head_size},)" in call for call in list_collectives(backward)) == 1


def test_with_sequences_cut_ranks_scatter_sums_and_gather_rows_at_all_lengths_that_they_divide(pair):
    """The residual stream stays whole where they do not."""
    forward, backward = map(list_kinds, pair[0]["sequence"]["calls"])
    assert forward == ["reduce_scatter", "all_gather"] * 3 + ["all_gather"]
    assert backward.count("reduce_scatter") == backward.count("all_gather") == 3
    assert [found["kinds"] for found in pair[0]["lengths"]] == [
        *(forward, ["all_reduce"] * 3 + ["all_gather"]),
    ]
    model = jit_alone(GatedLlama(SIZES[2]))
    take_steps(model, SIZES[2])
    for number, length in enumerate(LENGTHS):
        expected = model(draw_tokens(SIZES[2])[:, :length]).detach()
        for rank in pair:
            found = rank["lengths"][number]["result"]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


def test_gradients_are_clipped_by_the_norm_that_one_process_finds(pair):
    model = GatedLlama(SIZES[2])
    take_steps(model, SIZES[2])
    expected = take_clipped_step(model, torch.optim.AdamW(model.parameters(), lr=0.01), SIZES[2], 0)
    for rank in pair:
        torch.testing.assert_close(rank["norm"], expected, rtol=1e-5, atol=0)


def test_what_is_saved_is_loaded_and_training_goes_on_with_the_same_bits(pair):
    for rank in pair:
        first, again = rank["trained on"]
        assert all(map(torch.equal, first, again))
        assert all(torch.equal(tensor, rank["kept"][name]) for name, tensor in rank["loaded"].items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_process_loads_what_ranks_saved(pair, folder):
    model = GatedLlama(SIZES[2])
    checkpoint.load({"model": model.state_dict()}, checkpoint_id=folder, no_dist=True)
    kept = {name.removeprefix("."): tensor for name, tensor in pair[0]["kept"].items()}
    assert kept.keys() == model.state_dict().keys()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in kept.items())
