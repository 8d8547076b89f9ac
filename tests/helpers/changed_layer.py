"""A real model in which one constant of one layer is changed."""

import pytest

CHANGED_LAYER = 2


def train_llama(layer, **options):
    """Trains a narrow Llama of litgpt for one step; with ``layer`` the first norm of that layer has another eps."""
    litgpt = pytest.importorskip("litgpt")
    import torch
    from models import compile_with, step

    import fusioncache

    torch.manual_seed(0)
    widths = {"n_embd": 32, "n_head": 2, "intermediate_size": 48, "padded_vocab_size": 64}
    config = litgpt.Config.from_name("Llama-2-7b-hf", n_layer=4, block_size=16, **widths)
    model = litgpt.GPT(config)
    if layer is not None:
        model.transformer.h[layer].norm_1.eps = 3e-4
    cache = fusioncache.Cache()
    compiled, _ = compile_with(model, cache=cache, **options)
    step(compiled, model, torch.randint(0, config.padded_vocab_size, (1, 8)))
    cache.write_record()
