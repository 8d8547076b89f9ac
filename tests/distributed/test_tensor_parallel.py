"""Two and three ranks train a gated model with split layers as one process does; and refusals.

Sums are in another order: each rank sums its features, then partial sums are reduced over ranks. In float64 a sum of
fewer than a thousand terms differs by less than 1e-12 of the greatest one, and an error in our code by far more. If all
numbers are whole and small, no sum is rounded, and every bit equals that of one process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.distributed.checkpoint as checkpoint
from hypothesis import given
from hypothesis import strategies as st
from models import compile_with
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
from sharded_training import (
    copy_weights,
    describe,
    find_state,
    list_calls,
    list_collectives,
    make_options,
    run_ranks,
    spoil,
    take_step,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import fusioncache.distributed as distributed
from fusioncache.distributed.cuts import follow_reshape, take_part

LLAMA = {"column": COLUMN, "row": ROW, "gathered": GATHERED}
SIZES = {2: Sizes(), 3: Sizes(heads=6, groups=3, vocabulary=33, length=6)}
"""Sizes of the model by the number of ranks. Two ranks have two heads and one group each, three have one group each."""
DROPPING = replace(SIZES[2], dropout=0.2)
LENGTHS = (4, 5)
"""Lengths of sequences that two ranks split; the last one cannot be split equally."""


def cut(model: torch.nn.Module, **given: Any) -> Any:
    return distributed.tensor_parallel(model, **make_options(), **given)


def share(model: torch.nn.Module, **given: Any) -> Any:
    return cut(model, **{**LLAMA, **given})


def jit_alone(model: torch.nn.Module) -> Any:
    return compile_with(model, **make_options())[0]


def train_two(rank: int, folder: Path) -> dict[str, Any]:
    jitted = share(GatedLlama(SIZES[2]))
    released = GatedLlama(SIZES[2])
    sequence = share(released, sequence=True, release=True)
    return {
        "let go": [name for name, parameter in released.named_parameters() if parameter.is_meta],
        "plain": train_one(jitted, SIZES[2]),
        **train_on(jitted, SIZES[2], folder),
        "sequence": train_one(sequence, SIZES[2]),
        "lengths": [compute_length(sequence, length) for length in LENGTHS],
        "dropping": train_one(share(GatedLlama(DROPPING)), DROPPING, steps=1),
        "whole numbers": [compute_whole_numbers(sequence=sequence) for sequence in (False, True)],
        "tied": [compute_whole_numbers(tied=True)],
        "autocast": compute_under_autocast(share(GatedLlama(SIZES[2], dtype=torch.float32))),
    }


def train_three(rank: int) -> dict[str, Any]:
    return {"plain": train_one(share(GatedLlama(SIZES[3])), SIZES[3]), "whole numbers": [compute_whole_numbers()]}


def list_kinds(calls: list[str]) -> list[str]:
    """Returns the operation of each collective, such as ``all_reduce``."""
    return [call.split()[1] for call in list_collectives(calls)]


def train_one(jitted: Any, sizes: Sizes, steps: int = 3) -> dict[str, Any]:
    seen = take_steps(jitted, sizes, steps)
    shapes = {name: tuple(parameter.shape) for name, parameter in jitted.named_parameters()}
    return {"steps": seen, "shapes": shapes, **describe(jitted)}


@torch.no_grad()
def compute_length(jitted: Any, length: int) -> dict[str, Any]:
    """Returns a model's result for a sequence of another length, and the kinds of its collectives."""
    result = jitted(draw_tokens(SIZES[2])[:, :length])
    return {"result": result, "kinds": list_kinds(list_calls(thunder.last_traces(jitted)[-1]))}


def compute_under_autocast(model: Any) -> torch.Tensor:
    """Returns results of products in bfloat16, for which weights are converted."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return model(draw_tokens(SIZES[2])).float()


def compute_whole_numbers(*, sequence: bool = False, tied: bool = False) -> Values:
    """Returns results and gradients of a model whose sums are exact. A tied head is split like the table."""
    layers = {"column": ("embedding", "gate", "up"), "row": ("down",), "gathered": ("head",) if tied else ()}
    return compute_once(share(WholeNumbers(tied=tied), sequence=sequence, **layers))


def compute_once(model: Any) -> Values:
    tokens = torch.arange(12).reshape(2, 6)
    result = model(tokens)
    (result * (tokens[..., None] % 3 - torch.arange(18) % 2)).sum().backward()
    return {"result": result.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


def train_on(jitted: Any, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Takes a clipped step, saves, and takes another one; repeats that after loading; then loads the saved weights."""
    optimizer, new = (torch.optim.AdamW(jitted.parameters(), lr=0.01) for _ in range(2))
    norm = take_clipped_step(jitted, optimizer, sizes, 0)
    checkpoint.save(find_state(jitted, optimizer), checkpoint_id=folder)
    kept = copy_weights(jitted)
    take_clipped_step(jitted, optimizer, sizes, 1)
    first = [parameter.detach().clone() for parameter in jitted.parameters()]
    spoil(jitted)
    checkpoint.load(find_state(jitted, new), checkpoint_id=folder)
    take_clipped_step(jitted, new, sizes, 1)
    again = [parameter.detach().clone() for parameter in jitted.parameters()]
    spoil(jitted)
    jitted.load_original_state_dict({name.removeprefix("."): tensor for name, tensor in kept.items()})
    return {"norm": norm, "kept": kept, "loaded": copy_weights(jitted), "trained on": (first, again)}


def take_clipped_step(jitted: Any, optimizer: torch.optim.Optimizer, sizes: Sizes, seed: int) -> torch.Tensor:
    take_step(jitted, draw_tokens(sizes, seed))
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
    """Returns the joined values of all ranks for each step or way to compute."""
    wholes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return [join(parts, wholes) for parts in zip(*ranks, strict=True)]


def assert_equal_but_for_sums(found: Sequence[Values], alone: Sequence[Values]) -> None:
    """Asserts that steps of ranks equal those of one process, except for the order of sums."""
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
        # bfloat16 has eight bits, and a few roundings follow each other.
        assert (rank["autocast"] - expected).norm() < 0.02 * expected.norm()


def assert_equal_bits(ranks: Sequence[Sequence[Values]], model: torch.nn.Module) -> None:
    """Asserts that ranks, in each way to compute, have the same bits as one process."""
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
        assert list_collectives(first[mode]["forward"]) and list_collectives(first[mode]["backward"])
        for rank in trained:
            assert rank[mode]["templates"] == first[mode]["templates"]
            for direction in ("forward", "backward"):
                assert list_collectives(rank[mode][direction]) == list_collectives(first[mode][direction])
            assert not rank[mode]["bypasses"]


def test_ranks_add_up_once_behind_each_row_layer_and_once_in_front_of_each_group_of_column_layers(trained):
    """For embedding, attention and gated product; then the head. The norm of queries reduces its own gradient."""
    forward, backward = (trained[0]["plain"][direction] for direction in ("forward", "backward"))
    assert list_kinds(forward) == ["all_reduce"] * 3 + ["all_gather"]
    assert list_kinds(backward) == ["all_reduce"] * 4
    head_size = SIZES[len(trained)].head_size
    assert sum(f"({head_size},)" in call for call in list_collectives(backward)) == 1


def test_with_sequences_cut_ranks_scatter_sums_and_gather_rows_at_all_lengths_that_they_divide(pair):
    """At other lengths the residual stream stays whole."""
    forward, backward = (list_kinds(pair[0]["sequence"][direction]) for direction in ("forward", "backward"))
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


WIDTH = 8


class Stack(torch.nn.Module):
    """Two layers, and something between and behind them."""

    def __init__(self, between: Callable = torch.relu, behind: Callable = torch.relu):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.between, self.behind = between, behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self.second(self.between(self.first(x))))


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


AT_ONCE = {
    "the model has no layer 'nothing', which was named as a row layer": (GatedLlama(Sizes()), {"row": ["nothing"]}),
    "norm is a RMSNorm, which cannot be a column layer": (GatedLlama(Sizes()), {"column": ["norm"]}),
    "embedding is a Embedding, which cannot be a row layer": (GatedLlama(Sizes()), {"row": ["embedding"]}),
    "head is named twice: as a column and as a gathered layer": (
        GatedLlama(Sizes()),
        {"column": ["head"], "gathered": ["head"]},
    ),
    "embedding has 33 embeddings, which 2 ranks cannot share equally": (GatedLlama(Sizes(vocabulary=33)), LLAMA),
    "blocks.0.gate has 5 outputs, which 2 ranks cannot share equally": (GatedLlama(Sizes(gated=5)), LLAMA),
    "0 has 5 inputs, which 2 ranks": (torch.nn.Sequential(torch.nn.Linear(5, 4)), {"row": ["0"]}),
}


@pytest.mark.parametrize("said", AT_ONCE)
def test_layers_that_cannot_be_cut_are_refused_by_their_names(said):
    model, layers = AT_ONCE[said]
    with pytest.raises(distributed.CutError, match=said):
        cut(model, **layers)


def test_one_parameter_of_two_names_is_cut_under_both_or_none():
    model = GatedLlama(Sizes())
    model.head.weight = model.embedding.weight
    with pytest.raises(distributed.CutError, match=r"embedding.weight and head.weight are one parameter"):
        cut(model, column=["embedding"])
    cut(model, column=["embedding"], gathered=["head"])


BOTH = {"column": ["first"], "row": ["second"]}
TOKENS, NUMBERS = torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, WIDTH, WIDTH)
NEEDS_ALL_FEATURES = "first|second is a row layer"
WHEN_CALLED = {
    # Three heads of four features: two ranks can split the features, but not the heads.
    "heads": (
        GatedLlama(Sizes(heads=3, groups=3)),
        LLAMA,
        r"(?s)blocks.0.attention.*parallel_models\.py.*they cannot share",
    ),
    "a layer of several things": (
        Stack(lambda x: torch.cat(x.split((2, 6), dim=-1), -1)),
        BOTH,
        r"(?s)^first is cut.*test_tensor_parallel\.py.*cannot be cut: give each a layer of its own",
    ),
    "no row layer": (Stack(), {"column": ["first"]}, "second takes|first is cut"),
    "two column layers": (
        Stack(),
        {"column": ["first", "second"]},
        "second takes what first gives.*must be a row layer",
    ),
    "no column layer": (Stack(), {"row": ["second"]}, "second is a row layer, and what it takes is whole"),
    "a result that is cut": (Stack(), {"column": ["second"]}, "the model returns what second gives"),
    "softmax": (Stack(lambda x: torch.softmax(x, dim=-1)), BOTH, NEEDS_ALL_FEATURES),
    "indices": (Stack(lambda x: x[..., torch.arange(WIDTH)]), BOTH, NEEDS_ALL_FEATURES),
    "transposed": (Stack(lambda x: x.transpose(1, 2)), BOTH, NEEDS_ALL_FEATURES),
}


@pytest.mark.parametrize(("model", "layers", "said"), WHEN_CALLED.values(), ids=WHEN_CALLED)
def test_what_does_not_fit_is_refused_with_the_line(model, layers, said):
    jitted = cut(model, **layers)
    with pytest.raises(distributed.CutError, match=said):
        jitted(TOKENS if isinstance(model, GatedLlama) else NUMBERS)


def test_what_takes_single_features_is_not_refused():
    assert cut(Stack(lambda x: torch.tanh(x) * 2 + x), **BOTH)(NUMBERS).shape == NUMBERS.shape


def test_a_mesh_of_one_dimension_is_a_group_and_one_of_two_is_refused_as_are_parameters_of_one_copy():
    with pytest.raises(ValueError, match="the mesh must have one dimension"):
        cut(Stack(), group=DeviceMesh("cpu", [[0, 1]]), **BOTH)
    jitted = cut(Stack(), group=DeviceMesh("cpu", [0, 1]), **BOTH)
    assert dict(jitted.named_parameters())["first.weight"].shape == (WIDTH // 2, WIDTH)
    with pytest.raises(ValueError, match="broadcast_from names a rank of one copy"):
        distributed.fsdp(Stack(), DeviceMesh("cpu", [[0, 1]]), device=torch.device("cpu"), broadcast_from=0)


def test_a_model_that_is_shared_in_another_way_as_well_is_refused():
    jitted = thunder.distributed.ddp(cut(Stack(), **BOTH), broadcast_from=None)
    with pytest.raises(distributed.CutError, match="cannot be shared by"):
        jitted(NUMBERS)


@pytest.mark.parametrize(
    ("old", "new", "dim", "ranks", "found"),
    [
        ((2, 8, 16), (2, 8, 4, 4), 2, 2, 2),  # features into heads
        ((2, 8, 16), (2, 8, 4, 4), 2, 3, None),  # which three ranks cannot share
        ((2, 4, 2, 8, 3), (2, 8, 8, 3), 1, 2, 1),  # groups of heads into heads
        ((2, 8, 4, 4), (2, 8, 16), 2, 4, 2),  # heads into features
        ((2, 8, 16), (16, 16), 1, 2, None),  # rows of each of several sequences
        ((8, 16), (1, 8, 1, 16), 0, 2, 1),
        ((2, 1, 16), (2, 16), 1, 1, 1),  # one rank alone shares everything
    ],
)
def test_a_cut_follows_a_change_of_shape(old, new, dim, ranks, found):
    assert follow_reshape(old, new, dim, ranks) == found


FACTORS = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


@given(FACTORS, st.integers(0, 3), st.sampled_from([2, 3]), st.data())
def test_where_a_cut_follows_the_part_of_what_has_another_shape_is_the_part_in_that_shape(old, dim, ranks, data):
    dim = dim % len(old)
    old[dim] *= ranks
    elements = torch.arange(torch.Size(old).numel())
    split = data.draw(
        st.sampled_from([size for size in range(1, elements.numel() + 1) if elements.numel() % size == 0])
    )
    new = data.draw(st.sampled_from([(split, elements.numel() // split), (elements.numel(),), (1, *old), tuple(old)]))
    found = follow_reshape(old, new, dim, ranks)
    if found is None:
        return
    whole = elements.reshape(old)
    for rank in range(ranks):
        part = whole.chunk(ranks, dim)[rank]
        assert torch.equal(part.reshape(take_part(new, found, ranks)), elements.reshape(new).chunk(ranks, found)[rank])
