"""A real model of which one layer was changed by one constant, and the record that training it leaves."""

import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fusioncache.observe.record.database import record_path
from fusioncache.process.settings import DIRECTORY

LAYERS = 4
CHANGED_LAYER = 2
EPS = 3e-4
"""Of that layer's first norm. All others have the model's own, 1e-5."""


def save_changed_llama(layer: int | None = CHANGED_LAYER) -> None:
    """Leaves the record of litgpt's Llama, narrow, trained for one step with nothing compiled.

    The model is trained once in a process, because tracing it takes seconds.

    Args:
        layer: the one that was changed; None for the model as it is.
    """
    record = _record(layer)
    record_path().parent.mkdir(parents=True, exist_ok=True)
    record_path().write_bytes(record)


@cache
def _record(layer: int | None) -> bytes:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRECTORY.name, directory)
        patch.setattr(sys, "argv", ["train.py", "--model", "llama", "--layers", str(LAYERS)])
        train_llama(layer)
        return Path(record_path()).read_bytes()


def train_llama(layer: int | None, **options: Any) -> None:
    """Trains it for one step, and leaves the record where the environment says. Options are of ``FusionCache``."""
    litgpt = pytest.importorskip("litgpt")
    import torch
    from models import compile_with, step

    import fusioncache

    torch.manual_seed(0)
    widths = {"n_embd": 32, "n_head": 2, "intermediate_size": 48, "padded_vocab_size": 64}
    config = litgpt.Config.from_name("Llama-2-7b-hf", n_layer=LAYERS, block_size=16, **widths)
    model = litgpt.GPT(config)
    if layer is not None:
        model.transformer.h[layer].norm_1.eps = EPS
    cache_ = fusioncache.Cache()
    compiled, _ = compile_with(model, cache=cache_, **options)
    step(compiled, model, torch.randint(0, config.padded_vocab_size, (1, 8)))
    cache_.write_record()
