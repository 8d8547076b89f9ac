"""Attention by cuDNN on a GPU has the bits of torch's attention where torch chooses cuDNN."""

import re

import pytest
import thunder
import torch
from attention_layers import Attention, compile_with_cudnn, take_step, turn
from dispatched import Operations
from generating_models import generate, make_model, make_prompt
from stored_programs import compile_anew
from torch.nn.functional import scaled_dot_product_attention

import fusioncache
from fusioncache.accelerators.steps.masks import MASKS

pytestmark = pytest.mark.gpu

SIZE, HEADS = 64, 4
KINDS = {"causal": {"is_causal": True}, "of all": {}, "scaled": {"is_causal": True, "scale": 0.3}}
LENGTHS = (128, 96, 65, 200, 33)


def names_of(compiled):
    traces = [thunder.last_traces(compiled)[-1], *thunder.last_backward_traces(compiled)[-1:]]
    return [name for trace in traces for name in re.findall(r"\b(\w+)\(", trace.python())]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
def test_results_have_the_bits_of_torchs_own(tmp_path, kind, graphs):
    model = Attention(HEADS, SIZE, bias=False, **KINDS[kind]).to("cuda", torch.bfloat16)
    compiled, transform = compile_with_cudnn(model, tmp_path, "nvfuser", graphs=graphs)
    for length in (*LENGTHS, LENGTHS[0]):
        found, expected = (take_step(each, model, length) for each in (compiled, model))
        assert torch.equal(found[0], expected[0])
        torch.testing.assert_close(found[1:], expected[1:])
        with torch.no_grad():
            x = torch.randn(2, length, HEADS * SIZE, device="cuda", dtype=torch.bfloat16)
            assert torch.equal(compiled(x), model(x))
    assert "cudnn_attend" in names_of(compiled)
    assert transform.stats().programs_filled
    assert not transform.stats().bypasses


class Rotated(Attention):
    """A layer of attention between two linear ones, whose queries and keys a region changes."""

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        query, key, value = self.project_heads(x).unbind(0)
        query, key = (turn(each, SIZE // 2) for each in (query, key))
        result = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        return torch.nn.functional.linear(result, self.project.weight[: HEADS * SIZE])


def test_nothing_is_copied_between_regions_attention_and_layers(tmp_path):
    model = Rotated(HEADS, SIZE, bias=False).to("cuda", torch.bfloat16)
    compiled, transform = compile_with_cudnn(model, tmp_path, "nvfuser")
    for length in LENGTHS:
        found, expected = (take_step(each, model, length) for each in (compiled, model))
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
        with Operations() as seen:
            take_step(compiled, model, length)
        copies = {name: number for name, number in seen.names.items() if "clone" in name or "copy" in name}
        assert copies == {"aten.clone.default": 1}, copies  # of the gradient, by this test
    assert transform.stats().programs_filled


@torch.no_grad()
def test_queries_that_see_no_key_get_zeros_and_all_others_what_torch_gives_them(tmp_path):
    model = Attention(HEADS, SIZE, bias=False).to("cuda", torch.bfloat16)
    compiled, _ = compile_with_cudnn(model, tmp_path, "nvfuser")
    for length in LENGTHS:
        x = torch.randn(2, length, HEADS * SIZE, device="cuda", dtype=torch.bfloat16)
        places = torch.arange(length, device="cuda")
        padded = (places >= 30) & (places <= places[:, None])  # the first 30 tokens of a row are padding
        found, expected = (each(x, padded[None, None]) for each in (compiled, model))
        assert torch.equal(found[:, :, 30:], expected[:, :, 30:])
        assert not found[:, :, :30].any()
    assert "cudnn_attend" in names_of(compiled)


def test_what_cudnn_cannot_is_left_to_thunder(tmp_path):
    model = Attention(HEADS, SIZE, bias=False, is_causal=True).cuda()  # in float32
    plain = thunder.jit(model, executors=fusioncache.executors())
    compiled, _ = compile_with_cudnn(model, tmp_path, "nvfuser")
    found, expected = (take_step(each, model, 32)[0] for each in (compiled, plain))
    assert torch.equal(found, expected)
    assert not any("cudnn" in name for name in names_of(compiled))


@torch.inference_mode()
def test_tokens_are_those_of_thunder_but_for_rounding(tmp_path):
    logits = []
    for attention in ("thunder", "cudnn"):
        model = make_model(layers=3).to("cuda", torch.bfloat16)
        model.mask_cache = None  # it is no buffer, so ``to`` would not move it
        model.set_kv_cache(batch_size=1, device="cuda", dtype=torch.bfloat16)
        jit = {"executors": fusioncache.executors(attention=attention)}
        compiled, transform = compile_anew(model, tmp_path / attention, "nvfuser", jit=jit)
        logits.append([each for length in (7, 12, 9) for each in generate(compiled, make_prompt(length).cuda(), 1)])
        generate(compiled, make_prompt(9).cuda(), 4)
    torch.testing.assert_close(*logits, atol=0.05, rtol=0.05)
    stats = transform.stats()
    assert stats.taken_out[MASKS] == 2 * stats.programs_made  # of the masks of three layers
    assert names_of(compiled).count("cudnn_attend") == 3
