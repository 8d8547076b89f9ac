"""Where tensors are cut, and what ranks cannot share: the refusal names the layer. The job is a pretended one."""

from collections.abc import Callable, Iterator

import pytest
import thunder
import torch
from hypothesis import given
from hypothesis import strategies as st
from parallel_models import COLUMN, GATHERED, ROW, GatedLlama, Sizes
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.distributed.cuts import follow_reshape, take_part

WIDTH = 8


class Fused(torch.nn.Module):
    """Queries, keys and values from one layer, as in litgpt."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).split((WIDTH, WIDTH, WIDTH), dim=-1)
        return self.proj(torch.nn.functional.scaled_dot_product_attention(query, key, value))


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


def share(model: torch.nn.Module, **layers: object) -> torch.nn.Module:
    cache = fusioncache.Cache(record=False, store=False)
    return distributed.tensor_parallel(model, cache=cache, backend="eager", jobs=0, programs=False, **layers)


LLAMA = {"column": COLUMN, "row": ROW, "gathered": GATHERED}
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
        share(model, **layers)


def test_one_parameter_of_two_names_is_cut_under_both_or_none():
    model = GatedLlama(Sizes())
    model.head.weight = model.embedding.weight
    with pytest.raises(distributed.CutError, match=r"embedding.weight and head.weight are one parameter"):
        share(model, column=["embedding"])
    share(model, column=["embedding"], gathered=["head"])


BOTH = {"column": ["first"], "row": ["second"]}
TOKENS, NUMBERS = torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, WIDTH, WIDTH)
NEEDS_ALL_FEATURES = "first|second is a row layer"
WHEN_CALLED = {
    # Three heads of four features: two ranks can share the features, and no head.
    "heads": (
        GatedLlama(Sizes(heads=3, groups=3)),
        LLAMA,
        r"(?s)blocks.0.attention.*parallel_models\.py.*they cannot share",
    ),
    "a layer of several things": (
        Fused(),
        {"column": ["qkv"], "row": ["proj"]},
        r"(?s)^qkv is cut.*test_refusals\.py.*cannot be cut: give each a layer of its own",
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
    "a norm": (Stack(lambda x: torch.nn.functional.rms_norm(x, (WIDTH,))), BOTH, NEEDS_ALL_FEATURES),
    "sums along features": (Stack(lambda x: x.cumsum(-1)), BOTH, NEEDS_ALL_FEATURES),
    "the other way round": (Stack(lambda x: x.flip(-1)), BOTH, NEEDS_ALL_FEATURES),
    "indices": (Stack(lambda x: x[..., torch.arange(WIDTH)]), BOTH, NEEDS_ALL_FEATURES),
    "transposed": (Stack(lambda x: x.transpose(1, 2)), BOTH, NEEDS_ALL_FEATURES),
}


@pytest.mark.parametrize(("model", "layers", "said"), WHEN_CALLED.values(), ids=WHEN_CALLED)
def test_what_does_not_fit_is_refused_with_the_line(model, layers, said):
    jitted = share(model, **layers)
    with pytest.raises(distributed.CutError, match=said):
        jitted(TOKENS if isinstance(model, GatedLlama) else NUMBERS)


def test_what_takes_single_features_is_not_refused():
    assert share(Stack(lambda x: torch.tanh(x) * 2 + x), **BOTH)(NUMBERS).shape == NUMBERS.shape


def test_a_mesh_of_one_dimension_is_a_group_and_one_of_two_is_refused():
    with pytest.raises(ValueError, match="the mesh must have one dimension"):
        share(Stack(), group=DeviceMesh("cpu", [[0, 1]]), **BOTH)
    jitted = share(Stack(), group=DeviceMesh("cpu", [0, 1]), **BOTH)
    assert dict(jitted.named_parameters())["first.weight"].shape == (WIDTH // 2, WIDTH)


def test_parameters_of_a_rank_of_one_copy_are_refused():
    with pytest.raises(ValueError, match="broadcast_from names a rank of one copy"):
        distributed.fsdp(Stack(), DeviceMesh("cpu", [[0, 1]]), device=torch.device("cpu"), broadcast_from=0)


def test_a_model_that_is_shared_in_another_way_as_well_is_refused():
    jitted = thunder.distributed.ddp(share(Stack(), **BOTH), broadcast_from=None)
    with pytest.raises(distributed.CutError, match="cannot be shared by"):
        jitted(NUMBERS)


@pytest.mark.parametrize(
    ("old", "new", "dim", "ranks", "found"),
    [
        ((2, 8, 16), (2, 8, 4, 4), 2, 2, 2),  # features into heads
        ((2, 8, 16), (2, 8, 4, 4), 2, 3, None),  # which three ranks cannot share
        ((2, 4, 2, 8, 3), (2, 8, 8, 3), 1, 2, 1),  # groups of heads into heads
        ((2, 8, 4, 4), (2, 8, 16), 2, 4, 2),  # heads into features
        ((2, 8, 4, 4), (16, 16), 2, 2, 1),  # rows put together in front of it
        ((2, 8, 4, 4), (2, 8, 16), 3, 2, None),  # what lies behind heads, into features
        ((2, 8, 16), (16, 16), 1, 2, None),  # rows of each of several sequences
        ((8, 16), (1, 8, 1, 16), 0, 2, 1),
        ((1, 8, 16), (8, 16), 1, 4, 0),
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
