"""A GPU without memory for processes that compile: none of them helps, nobody waits, and every bit is the same."""

import os
from pathlib import Path

import pytest
import thunder
import torch
from models import Blocks, are_same, step
from pool_processes import is_running, wait_for_crew, wait_until

import fusioncache
from fusioncache.accelerators.precompile.ahead import pools

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("FUSIONCACHE_FILL_GPU" not in os.environ, reason="fills the GPU: alone, FUSIONCACHE_FILL_GPU=1"),
]

_LEFT = 2**30


def train(directory: Path, jobs: int):
    torch.manual_seed(0)
    model, x = Blocks(2, 64).to("cuda", torch.bfloat16), torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=directory), jobs=jobs)
    wait_for_crew()  # what they compile is small, so that this process would have done it before they have started
    return step(thunder.jit(model, transforms=[transform]), model, x), transform.stats()


def test_a_full_gpu_is_left_to_the_process_that_trains(tmp_path):
    expected, alone = train(tmp_path / "alone", 0)
    helped, with_help = train(tmp_path / "helped", 2)
    assert with_help.helped > 0  # there is something to lose
    free, _ = torch.cuda.mem_get_info()
    filler = torch.empty(free - _LEFT, dtype=torch.uint8, device="cuda")
    found, stats = train(tmp_path / "full", 2)
    pool = pools[tmp_path / "full"]
    assert (stats.helped, stats.compiles) == (0, alone.compiles)
    assert are_same(expected, helped) and are_same(expected, found)
    del filler
    pid = pool.pid
    pool.end()
    wait_until(lambda: pid is None or not is_running(pid))
