"""The same on two GPUs over NCCL, where collectives travel together and average, with nvFuser's regions."""

from functools import partial

import pytest
import torch
from sharded_training import run_ranks
from shared_lengths import FILLED, LENGTHS, MODES, run_all, run_later

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def found(folder):
    return run_ranks(partial(run_all, folder=folder), backend="nccl")


@pytest.mark.parametrize("mode", MODES)
def test_from_the_third_length_on_nothing_is_traced_and_all_is_as_if_it_were(found, mode):
    for rank in found:
        assert (rank[mode]["filled"], rank[mode]["traced"]) == (FILLED, (2, len(LENGTHS))), rank[mode]["reasons"]
        assert rank[mode]["equal"] == [(True, True)] * len(LENGTHS)
        assert rank[mode]["own"] == rank[mode]["mixed"] == rank[mode]["first"] == (True, True)


@pytest.fixture(scope="module")
def later(found, folder):
    return run_ranks(partial(run_later, folder=folder), backend="nccl")


@pytest.mark.parametrize("mode", MODES)
def test_a_later_job_has_the_same_bits_and_statements(later, mode):
    assert [rank[mode]["equal"] for rank in later] == [(True, True)] * 2


@pytest.mark.parametrize("mode", MODES)
def test_a_later_job_fills_in_its_first_length(later, mode):
    for rank in later:
        assert (rank[mode]["filled"], rank[mode]["traced"]) == (1, 0), rank[mode]["reasons"]
