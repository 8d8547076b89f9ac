"""Compiling ahead on a GPU: what an older version compiled is compiled for this one, and then only loaded."""

from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from models import Blocks, are_same, step

import fusioncache
from fusioncache.backends.nvfuser.backend import NvFuser

pytestmark = pytest.mark.gpu


def job(directory: Path) -> tuple[list[Any], Any]:
    """A training step of a model with a cache of its own: the results, and what the cache did."""
    torch.manual_seed(0)
    model, x = Blocks(2, 64).to("cuda", torch.bfloat16), torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=directory))
    results = step(thunder.jit(model, transforms=[transform]), model, x)
    return results, transform.stats()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_job_of_a_new_version_compiles_nothing(tmp_path, monkeypatch, jobs):
    environment = NvFuser.environment
    with monkeypatch.context() as patch:
        patch.setattr(NvFuser, "environment", lambda self: {**environment(self), "versions": "older"})
        before, first = job(tmp_path)
    warmed = fusioncache.warm(tmp_path, jobs=jobs)
    unkept = sum(first.unkept.values())
    assert (warmed.ready, warmed.compiled) == (0, first.compiles - unkept)
    assert all(reason.startswith("cannot be stored: ") for reason in warmed.refused)
    after, second = job(tmp_path)
    assert (second.compiles, second.loads) == (unkept, warmed.compiled)
    assert are_same(before, after)
    assert fusioncache.warm(tmp_path).ready == warmed.compiled
