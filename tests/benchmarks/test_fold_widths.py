"""The benchmark of folds: what it counts anywhere, what it computes with the backend that compiles nothing."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from click.testing import CliRunner
from drawn_regions import draw_residual
from repository import ROOT

from benchmarks import fold_widths
from benchmarks.fold_widths import (
    ITEM_BYTES,
    MB,
    ONE_KERNEL,
    POINTER_TABLE,
    WIDTH_SETS,
    Arena,
    Bench,
    Clock,
    Folds,
    add_in_turn,
    count_moved_bytes,
    make_fold,
    plans,
    split,
    summarize,
)
from fusioncache.backends.eager import Eager
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import FOLD_WIDTHS, fold
from fusioncache.template.plan import fold_widths as widths_of_plan


def test_without_a_device_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = CliRunner().invoke(fold_widths.main, [])
    assert outcome.exit_code == 2 and "on a CUDA device with nvFuser: there is no" in outcome.stderr


@pytest.mark.parametrize("widths", WIDTH_SETS)
def test_a_set_of_widths_adds_every_term_once_the_widest_first(widths):
    for terms in range(1, 200):
        folds = split(terms, widths)
        assert sum(folds) == terms and set(folds) <= set(widths)
        assert all(left >= right for left, right in pairwise(folds))


def test_the_set_of_today_is_split_as_the_plan_splits_it():
    assert FOLD_WIDTHS in WIDTH_SETS
    assert all(split(terms, FOLD_WIDTHS) == widths_of_plan(terms) for terms in range(1, 200))
    with pytest.raises(ValueError, match="folds of 8 4 terms leave 3 of them"):
        split(15, (8, 4))


def test_equal_sequences_of_folds_are_measured_once_under_all_names():
    found = plans(16)
    assert found[8, 8] == ["8 4 2 1", "32 8 2 1"] and found[16,][-1] == ONE_KERNEL
    assert not any(ONE_KERNEL in names for names in plans(17).values())


def test_bytes_are_those_that_kernels_read_and_write():
    # float32: head, three terms and the sum; in two folds the first one's sum is written and read again.
    assert count_moved_bytes(10, "float32", (3,)) == 10 * 4 * 5
    assert count_moved_bytes(10, "float32", (2, 1)) == 10 * 4 * 7
    # bfloat16: the sums stay in float32.
    assert count_moved_bytes(10, "bfloat16", (2, 1)) == 10 * (2 * 4 + 4 * 3)


class Turns(Clock):
    """A clock that calls everything once, and says that it took as long as was expected."""

    def measure(self, calls, expected, launches):
        for call in calls:
            call()
        return expected


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_way_is_measured_and_compared_and_what_fails_stops_nothing(dtype, monkeypatch):
    bench = Bench(Arena(16 * MB, "cpu", 4 * MB), Turns(), Folds(Eager(), lambda: None), 1e12)
    points = list(bench.measure(dtype, MB // 64, 3))
    good, bad = [[point for point in points if ("error" in point) is failed] for failed in (False, True)]
    assert len(good) == len(plans(3)) and len(bad) == len(POINTER_TABLE)  # there is no GPU
    for point in good:
        assert point["correct"] and point["launches"] == len(point["folds"])
        assert point["least_bytes"] <= point["moved_bytes"]
    assert json.loads(json.dumps(points)) == points
    columns, rows = summarize(points)
    assert len(columns) == 2 and rows[0][1] >= "1.000" and rows[-1][1] == ""
    monkeypatch.setattr(fold_widths, "add_in_turn", lambda args: add_in_turn([2 * args[0], *args[1:]]))
    assert not any(point["correct"] for point in bench.measure(dtype, MB // 64, 3) if "error" not in point)


def test_short_calls_are_timed_together_and_long_ones_less_often(monkeypatch):
    class Event:
        def __init__(self, enable_timing: bool):
            pass

        def record(self) -> None:
            self.calls = len(called)

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end):
            return 3.0 * (end.calls - self.calls)

    called: list[int] = []
    for name, fake in (("Event", Event), ("_sleep", lambda cycles: None), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, fake)
    calls = [lambda: called.append(0), lambda: called.append(1)]
    for given, count in (((1e-5, 1), 20 * 5), ((1e-6, 40), 20 * 10), ((1e-3, 1), 20), ((1.0, 99), 7)):
        called.clear()
        assert Clock().measure(calls, *given) == pytest.approx(3e-3) and len(called) == 3 + count


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_the_folds_are_those_of_a_template(dtype):
    element = getattr(torch, dtype)
    template = canonicalize(draw_residual(5, dtype=dtype)).graph
    terms, head = [torch.zeros(2, 3, dtype=element)], torch.zeros(2, 3, dtype=element)
    for step in fold(template, (77,)).chains[0].folds:
        assert make_fold([head, *terms * len(step.terms)]) == step.graph
        head = torch.zeros(2, 3)


def test_tensors_are_cut_from_one_memory_and_all_random():
    arena = Arena(MB, "cpu", MB // 2)
    sets = arena.cut("float32", 4096 * 8, 3)
    assert len(sets) == 2 and len({tensor.data_ptr() for one in sets for tensor in one}) == 6
    assert all(torch.isfinite(tensor).all() and tensor.std() > 0.5 for tensor in sets[0])
    # Else no sum in another order would differ.
    assert sets[0][0].view(torch.int32).bitwise_and(0xFFFF).unique().numel() > 100
    with pytest.raises(ValueError, match="bytes are needed"):
        arena.cut("float32", MB, 1)


@pytest.mark.gpu
def test_a_run_measures_every_way(tmp_path):
    file = tmp_path / "folds.json"
    options = ("--sizes", "1", "--terms", "3,9", "--json", str(file))
    script = [sys.executable, "-m", "benchmarks.fold_widths", *options]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(file.read_text())
    assert len(found["points"]) == 2 * (len(plans(3)) + len(plans(9)) + 2 * len(POINTER_TABLE))
    assert all(point["correct"] and point["seconds"]["run"] > 0 for point in found["points"])
