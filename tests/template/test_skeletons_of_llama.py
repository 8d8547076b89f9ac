"""The regions of a Llama block at five settings of batch and length: what they are instances of."""

import pytest
import torch
from generalized_regions import find_values
from models import compile_with

from fusioncache.template.generalization import Generalization, generalize, only, write_general_graph

SETTINGS = ((2, 64), (3, 96), (2, 128), (5, 65), (3, 32))
WIDTH = 32
"""One of the lengths, on purpose."""


def trace_block() -> list[list[Generalization]]:
    """The templates of a training step of one block, setting by setting."""
    litgpt = pytest.importorskip("litgpt")
    sizes = {"n_layer": 1, "n_embd": WIDTH, "n_head": 4, "block_size": 128, "intermediate_size": 48, "vocab_size": 16}
    kind = {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "parallel_residual": False, "bias": False}
    kind["n_query_groups"] = 2  # keys are like queries but for the number of heads
    model = litgpt.GPT(litgpt.Config(**sizes, **kind, rotary_percentage=1.0))
    block, (cos, sin) = model.transformer.h[0], model.rope_cache()
    compiled, transform = compile_with(block)
    found: list[list[Generalization]] = []
    for batch, length in SETTINGS:
        before = len(transform.calls())
        x = torch.randn(batch, length, WIDTH, requires_grad=True)
        compiled(x, cos[None, :length], sin[None, :length]).sum().backward()
        found.append([only(call.template.graph) for call in transform.calls()[before:]])
    return found


@pytest.mark.usefixtures("eager_regions")
def test_one_generalization_of_two_settings_covers_a_region_at_all_others():
    settings = trace_block()
    templates = {template for setting in settings for template in setting}
    skeletons = {template.skeleton for template in templates}
    assert len(templates) == len(SETTINGS) * len(skeletons)
    assert len(skeletons) > 5
    for skeleton in skeletons:
        regions = [template for setting in settings for template in setting if template.skeleton == skeleton]
        general = generalize(regions[:2])
        assert generalize(regions) == general
        assert all(find_values(general, region) for region in regions)
        assert len(write_general_graph(general).numbers) <= 1  # the product of batch and length
