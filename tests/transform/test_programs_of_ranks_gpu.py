"""Programs of models that two GPUs share over NCCL: made by one job, and loaded by another with the same bits."""

from functools import partial

import pytest
import torch
from programs_of_ranks import MODES, run_all
from sharded_training import equal_bits, run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]


def test_the_second_job_loads_what_the_first_one_made(tmp_path):
    made, loaded = (run_ranks(partial(run_all, folder=tmp_path), backend="nccl") for _ in range(2))
    for first, second in zip(made, loaded, strict=True):
        for mode in MODES:
            assert not first[mode]["refused"] and not second[mode]["refused"]
            # Each GPU has programs of its own, which its number is in.
            assert (first[mode]["counts"], second[mode]["counts"]) == ((1, 0), (0, 1)), mode
            assert equal_bits(first[mode]["values"], second[mode]["values"]), mode
            assert first[mode]["calls"] == second[mode]["calls"]
