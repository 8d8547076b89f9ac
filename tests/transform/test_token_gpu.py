"""A token of a model with a key-value cache on a GPU: rows written in place, and a mask prepared once."""

import pytest
import torch
from generating_models import find_caches, generate, make_model, make_prompt
from stored_programs import compile_anew

from fusioncache.accelerators.steps.tokens import COPIES, MASKS

pytestmark = pytest.mark.gpu


def generate_behind(lean, directory):
    """Returns logits and caches of tokens behind two prompts, and what was taken out of their programs."""
    model = make_model(layers=3).to("cuda", torch.bfloat16)
    model.mask_cache = None  # it is no buffer, and would stay where it was made
    model.set_kv_cache(batch_size=1, device="cuda", dtype=torch.bfloat16)
    compiled, transform = compile_anew(model, directory, "nvfuser", lean=lean)
    found = [each for length in (7, 12) for each in generate(compiled, make_prompt(length).cuda(), 20)]
    return [*found, *find_caches(model)], transform.stats().taken_out


@torch.inference_mode()
def test_tokens_and_caches_have_the_bits_of_thunders_programs(tmp_path):
    (expected, nothing), (found, taken) = (generate_behind(lean, tmp_path / lean) for lean in ("thunder", "auto"))
    assert not nothing
    assert taken[COPIES] == 3 * 3 * 2 * 2  # programs, layers, keys and values, copies
    assert taken[MASKS] == 2  # of three layers of a token
    assert all(map(torch.equal, found, expected))
