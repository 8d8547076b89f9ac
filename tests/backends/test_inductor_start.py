"""The estimate of the C++ compiler's seconds for a graph alone, from a run for several graphs."""

import pytest

from fusioncache.backends.inductor.joined_kernels import ALONE_SECONDS, HEADER_SECONDS, KILOBYTE_SECONDS, estimate_alone

KILOBYTE = "x" * 1000
RUN = HEADER_SECONDS + KILOBYTE_SECONDS


def test_a_run_of_the_expected_length_gives_the_expected_seconds():
    assert estimate_alone(RUN, [[KILOBYTE]]) == [pytest.approx(ALONE_SECONDS + KILOBYTE_SECONDS)]


def test_a_slower_machine_scales_the_estimate():
    assert estimate_alone(3 * RUN, [[KILOBYTE]]) == [pytest.approx(3 * (ALONE_SECONDS + KILOBYTE_SECONDS))]


def test_equal_sources_are_compiled_once():
    first, second = estimate_alone(1.0, [[KILOBYTE], [KILOBYTE, KILOBYTE]])
    assert first > 0 and second == 0


def test_a_graph_with_two_kernels_takes_two_runs_and_one_without_takes_none():
    one, two, none = estimate_alone(1.0, [["a" * 1000], ["b" * 1000, "c" * 1000], []])
    assert two == pytest.approx(2 * one) and none == 0
