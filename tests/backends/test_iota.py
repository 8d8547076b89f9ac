"""Positions that two kernels of a region on a GPU use: nvFuser would write them into the memory of other tensors."""

import pytest
import torch
from fake_cuda import find_nvfuser_executor
from models import compile_with
from torch.nn.functional import embedding, layer_norm

import fusioncache
from fusioncache.thunder_adapter.api import PrimIDs
from fusioncache.transform import shared_region

SIZE = BLOCK = 512


def embed(tokens, words, places, weight, bias):
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    hidden = embedding(tokens, words) + embedding(positions[None], places)
    return layer_norm(hidden, (SIZE,), weight, bias), positions[None] <= positions[:, None]


def find_changed(compiled, arguments):
    """Returns how many of some small tensors change while a function is called, and its results."""
    compiled(*arguments)
    blocks = [torch.full((BLOCK,), number % 250, dtype=torch.uint8, device="cuda") for number in range(400)]
    others = [(each, each.clone()) for each in blocks[::2]]
    del blocks  # half of them leave free memory between the others
    for _ in range(20):
        results = compiled(*arguments)
    return sum(not torch.equal(*each) for each in others), results


@pytest.mark.gpu
@pytest.mark.parametrize("length", [64, 65])
def test_no_other_tensor_changes(length):
    torch.manual_seed(length)
    tables = [torch.randn(shape, device="cuda") for shape in ((100, SIZE), (128, SIZE), (SIZE,), (SIZE,))]
    arguments = torch.randint(0, 100, (2, length), device="cuda"), *tables
    cache = fusioncache.Cache(record=False, store=False)
    compiled, transform = compile_with(embed, "auto", cache, programs=False)
    changed, results = find_changed(compiled, arguments)
    operations = {op.name for call in transform.calls() for op in call.template.graph.ops}
    assert operations and "prims.iota" not in operations and changed == 0
    torch.testing.assert_close(results, embed(*arguments))


def test_thunders_executor_takes_no_iota():
    assert PrimIDs.IOTA not in find_nvfuser_executor().implmap


def test_the_executor_is_adapted_for_each_backend(monkeypatch):
    asked = []
    monkeypatch.setattr(shared_region, "problem", lambda *names: asked.append(names) or "no GPU")
    assert shared_region.name_backend("eager") == "eager" and asked == [("nvfuser", "cuda")]
