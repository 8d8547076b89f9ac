"""What ranks cannot share is refused with the name of the layer. The job is a pretended one: nothing runs in it."""

import re
from collections.abc import Callable, Iterator

import pytest
import thunder
import torch
from parallel_models import COLUMN, GATHERED, ROW, GatedLlama, Sizes
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import fusioncache
import fusioncache.distributed as distributed

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


def refuse(model: torch.nn.Module, **layers: object) -> str:
    """Returns why a model is refused when it is first called."""
    jitted = share(model, **layers)
    with pytest.raises(distributed.CutError) as raised:
        jitted(torch.ones(2, WIDTH, WIDTH))
    return str(raised.value)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"row": ["*.down", "nothing"]}, "the model has no layer 'nothing', which was named as a row layer"),
        ({"column": ["norm"]}, "norm is a RMSNorm, which cannot be a column layer"),
        ({"row": ["embedding"]}, "embedding is a Embedding, which cannot be a row layer"),
        ({"column": ["head"], "gathered": ["head"]}, "head is named twice: as a column and as a gathered layer"),
    ],
)
def test_layers_that_cannot_be_cut_are_refused_by_their_names(layers, said):
    with pytest.raises(distributed.CutError, match=said):
        share(GatedLlama(Sizes()), **layers)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (Sizes(vocabulary=33), "embedding has 33 embeddings, which 2 ranks cannot share equally"),
        (Sizes(gated=5), "blocks.0.gate has 5 outputs, which 2 ranks cannot share equally"),
    ],
)
def test_odd_sizes_are_refused_with_the_layer(sizes, said):
    with pytest.raises(distributed.CutError, match=said):
        share(GatedLlama(sizes), column=COLUMN, row=ROW, gathered=GATHERED)


def test_odd_inputs_of_a_row_layer_are_refused():
    with pytest.raises(distributed.CutError, match="0 has 5 inputs, which 2 ranks"):
        share(torch.nn.Sequential(torch.nn.Linear(5, 4)), row=["0"])


def test_heads_that_ranks_cannot_share_are_refused_with_the_line():
    """Three heads of four features: two ranks can share the features, and no head."""
    jitted = share(GatedLlama(Sizes(heads=3, groups=3)), column=COLUMN, row=ROW, gathered=GATHERED)
    with pytest.raises(distributed.CutError) as raised:
        jitted(torch.zeros(2, 4, dtype=torch.int64))
    said = str(raised.value)
    assert "blocks.0.attention." in said and "parallel_models.py" in said and "they cannot share" in said


def test_one_parameter_of_two_names_is_cut_under_both_or_none():
    model = GatedLlama(Sizes())
    model.head.weight = model.embedding.weight
    with pytest.raises(distributed.CutError, match=r"embedding.weight and head.weight are one parameter"):
        share(model, column=["embedding"])
    share(model, column=["embedding"], gathered=["head"])


def test_a_layer_of_several_things_is_refused_with_the_line():
    said = refuse(Fused(), column=["qkv"], row=["proj"])
    assert said.startswith("qkv is cut") and "test_refusals.py" in said
    assert "cannot be cut: give each a layer of its own" in said


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"column": ["first"]}, "second takes|first is cut"),
        ({"column": ["first", "second"]}, "second takes what first gives.*must be a row layer"),
        ({"row": ["second"]}, "second is a row layer, and what it takes is whole"),
        ({"column": ["second"]}, "the model returns what second gives"),
    ],
)
def test_layers_that_do_not_fit_each_other_are_refused(layers, said):
    assert re.search(said, refuse(Stack(), **layers))


@pytest.mark.parametrize(
    "between",
    [
        lambda x: torch.softmax(x, dim=-1),
        lambda x: torch.nn.functional.rms_norm(x, (WIDTH,)),
        lambda x: x.cumsum(-1),
        lambda x: x.flip(-1),
        lambda x: x[..., torch.arange(WIDTH)],
        lambda x: x.transpose(1, 2),
    ],
)
def test_what_needs_all_features_is_refused(between):
    said = refuse(Stack(between), column=["first"], row=["second"])
    assert "first" in said or "second is a row layer" in said


def test_what_takes_single_features_is_not_refused():
    jitted = share(Stack(lambda x: torch.tanh(x) * 2 + x), column=["first"], row=["second"])
    assert jitted(torch.ones(2, 4, WIDTH)).shape == (2, 4, WIDTH)


def test_a_mesh_of_one_dimension_is_a_group_and_one_of_two_is_refused():
    mesh = DeviceMesh("cpu", [[0, 1]])
    with pytest.raises(ValueError, match="the mesh must have one dimension"):
        share(Stack(), group=mesh, column=["first"], row=["second"])
    jitted = share(Stack(), group=DeviceMesh("cpu", [0, 1]), column=["first"], row=["second"])
    assert dict(jitted.named_parameters())["first.weight"].shape == (WIDTH // 2, WIDTH)


def test_a_model_that_is_shared_in_another_way_as_well_is_refused():
    jitted = thunder.distributed.ddp(share(Stack(), column=["first"], row=["second"]), broadcast_from=None)
    with pytest.raises(distributed.CutError, match="cannot be shared by"):
        jitted(torch.ones(2, 4, WIDTH))
