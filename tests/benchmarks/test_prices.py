"""The price list: it covers each accelerator, and its ratios are seconds without one over seconds with all."""

from benchmarks import prices as benchmark
from fusioncache.accelerators.registry import SWITCHES


class Pairs:
    def run(self, repeat):
        for number in range(repeat):
            with_all = {"cold": {"seconds": {"cold": 2.0, "collector": 0.0}}, "second": {"each": [{"later": 0.5}] * 2}}
            without = {"seconds": {"cold": 3.0 + number, "collector": 0.1}}
            second = {"each": [{"later": 0.25}, {"later": 1.0}]}
            yield {benchmark.WITH: with_all, benchmark.WITHOUT: {"cold": without, "second": second}}


def test_each_accelerator_has_its_lines_and_names():
    assert benchmark.FOLDERS.keys() == SWITCHES.keys()
    for name in benchmark.FOLDERS:
        point = benchmark.describe_accelerator(name)
        assert point["lines"] > 100 and point["files"] > 1, point
    assert benchmark.describe_accelerator("schedule")["names"]


def test_ratios_are_seconds_without_over_seconds_with():
    assert benchmark.measure(Pairs(), 2) == {"ratios": {"cold": [1.5, 2.0], "later": [0.5, 2.0, 0.5, 2.0]}}
