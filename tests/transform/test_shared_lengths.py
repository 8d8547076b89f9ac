"""Models that ranks share by Thunder's fsdp and ddp, at lengths that nobody had: filled in as they would be traced."""

from functools import partial

import pytest
from sharded_training import run_ranks
from shared_lengths import FILLED, LENGTHS, MODES, run_all, run_later

from fusioncache.accelerators.sizes.lengths import SHARED


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def found(folder):
    return run_ranks(partial(run_all, folder=folder))


@pytest.mark.parametrize("mode", MODES)
def test_from_the_third_length_on_nothing_is_traced(found, mode):
    for rank in found:
        assert (rank[mode]["filled"], rank[mode]["traced"]) == (FILLED, (2, len(LENGTHS))), rank[mode]["reasons"]
        assert SHARED not in rank[mode]["reasons"]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_filled_in_is_what_is_traced_to_the_letter_and_to_the_bit(found, mode):
    for rank in found:
        assert rank[mode]["equal"] == [(True, True)] * len(LENGTHS)
        assert rank[mode]["first"] == (True, True)


@pytest.mark.parametrize("mode", MODES)
def test_ranks_may_have_lengths_of_their_own_and_one_may_derive_what_another_fills_in(found, mode):
    for rank in found:
        assert rank[mode]["own"] == rank[mode]["mixed"] == (True, True)


def test_steps_that_add_up_nothing_have_programs_of_their_own(found):
    for rank in found:
        assert rank["ddp"]["alone"] == [(True, True)] * len(LENGTHS)


@pytest.mark.parametrize("mode", MODES)
def test_a_later_job_fills_in_its_first_length(found, folder, mode, later):
    for rank in later:
        assert rank[mode] == {"equal": (True, True), "filled": 1, "traced": 0, "reasons": {}}


@pytest.fixture(scope="module")
def later(found, folder):
    return run_ranks(partial(run_later, folder=folder))
