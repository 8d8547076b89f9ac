"""Compiling ahead on a GPU: entries of an older version are compiled for this one, and then only loaded."""

from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from models import Blocks, are_same, step
from pool_processes import wait_until

import fusioncache
from fusioncache.backends.nvfuser.backend import NvFuser

pytestmark = pytest.mark.gpu


def job(directory: Path, *lengths: int, **options: Any) -> tuple[list[Any], Any]:
    """Takes training steps of a model with a new cache; returns the last results, and the transform."""
    torch.manual_seed(0)
    model, x = Blocks(2, 64).to("cuda", torch.bfloat16), torch.randn(256, 64, device="cuda", dtype=torch.bfloat16)
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=directory), **options)
    compiled = thunder.jit(model, transforms=[transform])
    for length in lengths or (32,):
        results = step(compiled, model, x[:length])
    return results, transform


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_job_of_a_new_version_compiles_nothing(tmp_path, monkeypatch, jobs):
    environment = NvFuser.environment
    with monkeypatch.context() as patch:
        patch.setattr(NvFuser, "environment", lambda self: {**environment(self), "versions": "older"})
        before, transform = job(tmp_path)
    first = transform.stats()
    warmed = fusioncache.warm(tmp_path, jobs=jobs)
    unkept = sum(first.unkept.values())
    assert (warmed.ready, warmed.compiled) == (0, first.compiles - unkept)
    assert all(reason.startswith("cannot be stored: ") for reason in warmed.refused)
    after, transform = job(tmp_path)
    second = transform.stats()
    assert (second.compiles, second.loads) == (unkept, warmed.compiled)
    assert are_same(before, after)
    assert fusioncache.warm(tmp_path).ready == warmed.compiled


def test_a_length_that_no_process_has_used_is_compiled_ahead(tmp_path):
    expected, _ = job(tmp_path / "other", 96)
    _, transform = job(store := tmp_path / "store", 24, 40)
    first = transform.stats()
    dense = (first.compiles + first.loads) / 2 - 1  # one takes the expanded gradient of a sum
    warmed = fusioncache.warm(store, lengths=[96])
    assert (warmed.compiled, warmed.failed) == (dense, 0)
    results, transform = job(store, 96)
    stats = transform.stats()
    assert (stats.programs_filled, stats.loads - stats.helped) == (1, dense)
    assert stats.compiles + stats.loads == dense + 1 and are_same(results, expected)


def test_a_length_that_is_named_is_compiled_beside(tmp_path):
    expected, _ = job(tmp_path / "other", 128)
    _, transform = job(store := tmp_path / "store", 24, 40, lengths=[96, 128], jobs=2)
    queued = transform.stats().lengths_queued
    assert queued > 4 and not transform.stats().lengths_refused
    wait_until(lambda: transform.stats().lengths_compiled == queued)
    results, transform = job(store, 128)
    stats = transform.stats()
    assert stats.loads - stats.helped == queued / 2 - 1 and are_same(results, expected)
