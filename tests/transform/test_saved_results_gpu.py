"""On a GPU results of Thunder's flash attention are saved once."""

import pytest
import thunder
import torch
from attention_layers import Attention, count_saved, take_step, turn
from stored_programs import compile_anew, without_interpreter
from torch.nn.functional import scaled_dot_product_attention

from fusioncache.accelerators.steps.views import RESULTS

pytestmark = pytest.mark.gpu

SIZE, HEADS = 64, 4
WIDTH = SIZE * HEADS
LENGTHS, REPEATABLE = (64, 48, 33, 200, 17), 64
"""And up to which length torch's kernel repeats its gradients exactly: more blocks add up in any order."""


class Layer(Attention):
    """A layer of attention between two linear ones, whose queries and keys a region turns."""

    def __init__(self, scaled: bool = False):
        super().__init__(HEADS, SIZE)
        self.join = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = torch.nn.Parameter(torch.rand(SIZE)) if scaled else None

    def forward(self, x):
        query, key, value = self.project_heads(x).unbind(0)
        query, key = (turn(each, SIZE // 2) for each in (query, key))
        query = query if self.scale is None else query * self.scale
        result = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        return self.join(result.reshape(*x.shape[:2], WIDTH))


def assert_same(found, expected, length):
    assert torch.equal(found[0], expected[0])
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        error = 0.0 if length <= REPEATABLE else 0.05
        torch.testing.assert_close(one, other, atol=error, rtol=error)


@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_every_bit_is_the_same_at_all_lengths(tmp_path, scaled, graphs):
    model = Layer(scaled).to("cuda", torch.bfloat16)
    compiled, transform = compile_anew(model, tmp_path, "nvfuser", graphs=graphs)
    plain = thunder.jit(model)
    for length in (*LENGTHS, LENGTHS[0]):
        assert_same(take_step(compiled, model, length), take_step(plain, model, length), length)
        with torch.no_grad():
            x = torch.randn(2, length, WIDTH, device="cuda", dtype=torch.bfloat16)
            found, expected = compiled(x), plain(x)
        assert torch.equal(found, expected) and found.stride() == expected.stride()
    stats = transform.stats()
    assert stats.taken_out[RESULTS] and stats.programs_filled and not stats.bypasses


def test_a_result_is_saved_once_also_in_a_later_process(tmp_path):
    model = Layer().to("cuda", torch.bfloat16)
    plain, _ = compile_anew(model, tmp_path / "other", "nvfuser", lean="thunder")
    take_step(plain, model, LENGTHS[0])
    compiled, _ = compile_anew(model, tmp_path / "one", "nvfuser")
    expected = take_step(compiled, model, LENGTHS[0])
    assert count_saved(compiled) == count_saved(plain) - 1
    later, transform = compile_anew(model, tmp_path / "one", "nvfuser")
    with without_interpreter():
        assert_same(take_step(later, model, LENGTHS[0]), expected, LENGTHS[0])
    assert transform.stats().programs_loaded == 1 and not transform.stats().compiles


def test_regions_are_verified(tmp_path):
    model = Layer().to("cuda", torch.bfloat16)
    compiled, transform = compile_anew(model, tmp_path, "nvfuser", verify="all")
    for length in LENGTHS[:2]:
        take_step(compiled, model, length)
    assert transform.stats().verified and not transform.stats().bypasses
