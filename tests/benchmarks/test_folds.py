"""The benchmark of folds: what it counts anywhere, what it computes with the backend that compiles nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from drawn_regions import draw_residual
from repository import ROOT

from benchmarks.common.results import Outcome
from benchmarks.common.tensors import same_bits
from benchmarks.folds import __main__ as command
from benchmarks.folds import report, run
from benchmarks.folds.device import Arena, Clock, Timing
from benchmarks.folds.kernels import Folds, add_in_turn, make_fold
from benchmarks.folds.spec import (
    ITEM_BYTES,
    MB,
    NARROWEST_FIRST,
    ONE_KERNEL,
    WIDTH_SETS,
    Step,
    count_copies,
    label,
    least_bytes,
    moved_bytes,
    narrowest_first,
    order_steps,
    plans,
    split,
)
from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser import backend as nvfuser
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import FOLD_WIDTHS, fold
from fusioncache.template.plan import fold_widths as widths_of_plan


def test_without_a_device_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = CliRunner().invoke(command.main, [])
    assert outcome.exit_code == 2
    assert "on a CUDA device with nvFuser: there is no" in outcome.stderr


@pytest.mark.parametrize("widths", WIDTH_SETS)
def test_a_set_of_widths_adds_every_term_once_the_widest_first(widths):
    for terms in range(1, 200):
        folds = split(terms, widths)
        assert sum(folds) == terms and set(folds) <= set(widths)
        assert all(left >= right for left, right in pairwise(folds))


def test_the_set_of_today_is_split_as_the_plan_splits_it():
    assert FOLD_WIDTHS in WIDTH_SETS
    assert all(split(terms, FOLD_WIDTHS) == widths_of_plan(terms) for terms in range(1, 200))


def test_a_set_that_leaves_terms_is_refused():
    with pytest.raises(ValueError, match="folds of 8 4 terms leave 3 of them"):
        split(15, (8, 4))


def test_equal_sequences_of_folds_are_measured_once_under_all_names():
    found = plans(16)
    assert found[16,] == [
        *(label(widths) for widths in WIDTH_SETS if 16 in widths),
        *(narrowest_first(widths) for widths in NARROWEST_FIRST if 16 in widths),
        ONE_KERNEL,
    ]
    assert found[8, 8] == ["8 4 2 1", "32 8 2 1", "1 2 4 8"]
    assert plans(3)[1, 2] == [narrowest_first(widths) for widths in NARROWEST_FIRST]
    assert not any(ONE_KERNEL in names for names in plans(17).values())


def test_bytes_are_those_that_kernels_read_and_write():
    # float32: head, three terms and the sum; in two folds the first one's sum is written and read again.
    assert moved_bytes(10, "float32", (3,)) == least_bytes(10, "float32", 3) == 10 * 4 * 5
    assert moved_bytes(10, "float32", (2, 1)) == 10 * 4 * 7
    # bfloat16: the sums stay in float32.
    assert moved_bytes(10, "bfloat16", (2, 1)) == 10 * (2 * 4 + 4 * 3)
    assert least_bytes(10, "bfloat16", 3, "float32") == 10 * (4 + 2 * 3 + 4)
    assert Step("width", "bfloat16", 20, 3).least_bytes == 10 * (4 + 2 * 3 + 4)
    assert Step("chain", "bfloat16", 20, 3).needs == 80
    assert Step("width", "bfloat16", 20, 3).needs == 100


@pytest.mark.parametrize(("needed", "expected"), [(10, 10), (99, 2), (100, 1), (700, 1)])
def test_calls_take_turns_until_the_cache_has_forgotten(needed, expected):
    assert count_copies(needed, 100, 500) == expected


def test_only_as_many_sets_are_taken_as_there_is_memory_for():
    assert count_copies(10, 100, 45) == 4


def test_chains_of_middle_sizes_come_first_then_widths():
    order = list(order_steps([MB, 16 * MB, 64 * MB], ["bfloat16"], [3, 8], [2]))
    assert [(step.kind, step.term_bytes // MB, step.terms) for step in order] == [
        *(("chain", 16, 3), ("chain", 16, 8), ("chain", 64, 3), ("chain", 64, 8)),
        *(("width", 16, 2), ("width", 64, 2)),
        *(("chain", 1, 3), ("chain", 1, 8), ("width", 1, 2)),
    ]


class Turns:
    """A clock that calls everything once, and says that it took as long as was expected."""

    def measure(self, calls: Sequence[Any], expected: float, launches: int) -> Timing:
        for call in calls:
            call()
        return Timing(expected, 1e-5 * launches, (1, 1))

    def host(self, calls: Sequence[Any]) -> float:
        for call in calls:
            call()
        return 1e-6


class NoTables:
    def way(self, args: Sequence[Any], block: int, ahead: int) -> Any:
        raise RuntimeError("no kernel\nof this kind")


@pytest.fixture
def bench():
    folds = Folds(Eager(), lambda: None)
    return run.Bench(Arena(16 * MB, "cpu", 4 * MB), Turns(), folds, NoTables(), 1e12)


WORK = [Step(kind, dtype, MB // 64, 3) for kind in ("chain", "width") for dtype in ITEM_BYTES]


def measure(bench: Any, work: Sequence[Step], until: float = float("inf")) -> Outcome:
    return run.run(work, bench, until, lambda outcome: None)


def test_every_way_is_measured_and_compared_and_what_fails_stops_nothing(bench):
    outcome = measure(bench, WORK)
    assert outcome.failed and not outcome.notes
    good = [point for point in outcome.points if "error" not in point]
    assert len(good) == 2 * len(plans(3)) + 2
    for point in good:
        assert point["bitwise"] is True and point["launches"] == len(point["folds"])
        assert point["least_bytes"] <= point["moved_bytes"]
        assert set(point["seconds"]) == {"run", "host", "compile", "floor"}
        assert point["seconds"]["floor"] == point["least_bytes"] / 1e12
    bad = [point for point in outcome.points if "error" in point]
    assert {point["way"] for point in bad} == {"pointer table"}
    assert {point["error"] for point in bad} == {"RuntimeError: no kernel"}
    assert json.loads(json.dumps(outcome.points)) == outcome.points


def test_the_script_writes_what_it_measured(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(nvfuser, "nvfuser_problem", lambda: None)
    monkeypatch.setattr(command, "_bench", lambda work: (bench, {"bytes_per_second": bench.bandwidth}))
    monkeypatch.setattr(command, "MB", MB // 64)
    file = tmp_path / "new" / "folds.json"
    options = ["--sizes", "1,2", "--terms", "3", "--widths", "2", "--dtypes", "bfloat16", "--json", str(file)]
    done = CliRunner().invoke(command.main, options)
    assert done.exit_code == 1 and "error: chain of 3, bfloat16" in done.stdout, done.output
    found = json.loads(file.read_text())
    assert set(found) == {"schema", "environment", "copy", "points", "notes"}
    assert found["environment"]["options"] == {
        **{"sizes": [1, 2], "widths": [2], "terms": [3], "dtypes": ["bfloat16"]},
        "seconds": 100.0,
    }
    assert {(point["kind"], point["terms"]) for point in found["points"]} == {("chain", 3), ("width", 2)}


def test_short_calls_are_timed_together_and_long_ones_less_often(monkeypatch):
    class Event:
        def __init__(self, enable_timing: bool):
            pass

        def record(self) -> None:
            self.calls = len(called)

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return 3.0 * (end.calls - self.calls)

    called: list[int] = []
    for name, fake in (("Event", Event), ("_sleep", lambda cycles: None), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, fake)
    calls = [lambda: called.append(0), lambda: called.append(1)]
    assert [Clock().measure(calls, *given).runs for given in ((1e-5, 1), (1e-6, 40), (1e-3, 1), (1.0, 99))] == [
        *((20, 5), (20, 10), (20, 1), (7, 1))
    ]
    called.clear()
    assert Clock().measure(calls, 1.0, 1).run == pytest.approx(3e-3)
    assert called == [0, 1, *[0, 1, 0, 1, 0, 1, 0] * 2]


def test_a_wrong_sum_is_an_error(bench, monkeypatch):
    monkeypatch.setattr(run, "add_in_turn", lambda args: add_in_turn(args[::-1]))
    (point,) = measure(bench, WORK[-1:]).points
    assert point["bitwise"] is False and point["error"] == "its sum is not bitwise that of torch"


def test_a_step_without_tensors_is_one_failed_point(bench, monkeypatch):
    monkeypatch.setattr(run, "add_in_turn", lambda args: 1 / 0)
    outcome = measure(bench, WORK[:2])
    assert [point["error"] for point in outcome.points] == ["ZeroDivisionError: division by zero"] * 2
    report.make_tables(result(outcome.points))


def test_steps_that_are_late_or_too_large_are_noted(bench):
    outcome = measure(bench, [Step("chain", "float32", 64 * MB, 3), *WORK], until=0)
    assert not outcome.points and not outcome.failed
    assert outcome.notes == [
        "chain of 3, float32, 64 MB a term skipped: its terms take 0.3 GB",
        f"no time was left for 4 of 5 steps: {'; '.join(map(str, WORK))}",
    ]


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_the_folds_are_those_of_a_template(dtype):
    element = getattr(torch, dtype)
    template = canonicalize(draw_residual(5, dtype=dtype)).graph
    terms, head = [torch.zeros(2, 3, dtype=element)], torch.zeros(2, 3, dtype=element)
    for step in fold(template, (77,)).chains[0].folds:
        assert make_fold([head, *terms * len(step.terms)]) == step.graph
        head = torch.zeros(2, 3)


def test_tensors_are_cut_from_one_memory_side_by_side_and_all_random():
    arena = Arena(MB, "cpu", MB // 2)
    sets = arena.sets(["float32", "bfloat16", "bfloat16"], 4096 * 8)
    assert len(sets) == count_copies(4096 * 8 * 8, MB // 2, MB) == 2
    layout = [(tensor.data_ptr(), tensor.numel() * tensor.element_size()) for one in sets for tensor in one]
    ends = accumulate((size for _, size in layout), initial=layout[0][0])
    assert [address for address, _ in layout] == list(ends)[:-1]
    for tensor in sets[0]:
        assert torch.isfinite(tensor).all() and tensor.float().std() > 0.5
    # Else no sum in another order would differ.
    assert sets[0][0].view(torch.int32).bitwise_and(0xFFFF).unique().numel() > 100
    with pytest.raises(ValueError, match="bytes are needed"):
        arena.sets(["float32"], MB)


def test_zeros_of_another_sign_are_other_bits():
    zero = torch.zeros(3)
    assert same_bits(zero, zero.clone())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.to(torch.bfloat16))


def chain(terms: int, run: float, folds: Sequence[int] = (), **more: Any) -> dict[str, Any]:
    """A point whose floor is 10 us."""
    about = {"kind": "chain", "dtype": "bfloat16", "term_bytes": 16 * MB, "terms": terms, "launches": len(folds) or 1}
    way = {"way": "folds", "plans": plans(terms)[tuple(folds)], "folds": list(folds)} if folds else {}
    seconds = {"run": run, "host": 2e-5, "compile": 0.25, "floor": 1e-5}
    return about | way | {"seconds": seconds, "moved_bytes": 4 * 10**7} | more


def result(points: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> dict[str, Any]:
    return {"points": points, "notes": notes, "copy": {"bytes_per_second": 4.1e12}}


TABLE = {"way": "pointer table", "block": 1024, "ahead": 4}


def test_tables_show_time_over_the_floor(capsys):
    points = [
        *(chain(16, 2e-5, [8, 8]), chain(16, 1.5e-5, [16]), chain(16, 1.1e-5, **TABLE)),
        *(chain(64, 1.8e-5, [8] * 8), chain(64, 1.4e-5, [16] * 4, error="it\nbroke"), chain(64, 1.2e-5, **TABLE)),
        chain(8, 1.25e-5, kind="width", way="folds", plans=[], folds=[8]),
    ]
    report.print_result(result(points, ["no time was left"]))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "chains of bfloat16, 16 MB a term" in lines and "single folds of bfloat16" in lines
    # Floor; 8 4 2 1; 16 8 4 2 1; 32 16 8 4 2 1 (no point at 64); ...
    (row,) = (line for line in lines if line.startswith("16 10.0"))
    assert row.startswith("16 10.0 2.00 1.50 1.50 1.50") and row.endswith("1.10")
    assert any(line.startswith("64 10.0 1.80 failed") for line in lines)
    assert "8 0.25 3.20, 1.25" in lines
    # The mean of 2.0 and 1.8; none for a plan of which a chain failed.
    assert any(line == "8 4 2 1 1.897 0.25 8 20" for line in lines)
    assert any(line.startswith("table 1024/4 1.149 0.25 1 20") for line in lines)
    assert not any(line.startswith("16 8 4 2 1 1.") for line in lines)
    assert "note: no time was left" in lines
    assert any(line.startswith("error: chain of 64, bfloat16, 16 MB a term, 16 16 16 16: it") for line in lines)


@pytest.mark.gpu
def test_a_run_measures_every_way(tmp_path):
    file = tmp_path / "folds.json"
    options = ("--sizes", "1", "--terms", "3,9", "--widths", "2,3", "--json", str(file))
    script = [sys.executable, "benchmarks/fold_widths.py", *options]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "single folds of bfloat16" in done.stdout and "all chains" in done.stdout
    found = json.loads(file.read_text())
    assert set(found) == {"schema", "environment", "copy", "points", "notes"}
    assert found["environment"]["options"]["terms"] == [3, 9] and found["notes"] == []
    assert found["copy"]["bytes_per_second"] > 0
    expected = 2 * (len(plans(3)) + len(plans(9)) + 2 * 3 + 2)
    assert len(found["points"]) == expected
    for point in found["points"]:
        assert point["bitwise"] is True and "error" not in point
        assert all(point["seconds"][name] > 0 for name in ("run", "host", "compile", "floor"))
        assert point["way"] == "folds" or {"table", "kernel"} <= set(point["seconds"])
