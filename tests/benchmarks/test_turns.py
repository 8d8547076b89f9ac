"""Processes of a benchmark that get ready together, and measure one at a time."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from benchmarks.common.processes import ProcessFailed
from benchmarks.common.turns import call_in_turns

WORKER = """
import time
from benchmarks.common.processes import serve
from benchmarks.common.turns import turn

def measure(given):
    time.sleep(given["seconds"])
    if given["dies"]:
        raise SystemExit(3)
    ready = time.monotonic()
    with turn():
        begun = time.monotonic()
        time.sleep(0.05)
        return {"ready": ready, "begun": begun, "ended": time.monotonic()}

serve(measure)
"""


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


def make_arguments(*seconds, dies=None):
    return [{"seconds": each, "dies": number == dies} for number, each in enumerate(seconds)]


def test_nobody_measures_before_all_are_ready_or_beside_another(worker):
    answers = list(call_in_turns(worker, make_arguments(0.0, 0.4, 0.2), 3))
    turns = sorted(answers, key=lambda each: each["begun"])
    assert max(each["ready"] for each in answers) <= turns[0]["begun"]
    assert all(one["ended"] <= other["begun"] for one, other in pairwise(turns))


def test_one_that_dies_holds_nobody_up_and_answers_come_in_order(worker):
    first, second, third = call_in_turns(worker, make_arguments(0.2, 0.0, 0.0, dies=1), 2)
    assert isinstance(second, ProcessFailed) and "3" in second.message
    assert first["ended"] < third["begun"]


def test_benchmarks_that_are_started_together_take_turns_with_each_other(worker, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_TURNS", str(tmp_path / "lock"))
    ours, theirs = call_in_turns(worker, make_arguments(0.0), 1), call_in_turns(worker, make_arguments(0.5), 1)
    with ThreadPoolExecutor(2) as pool:
        (one,), (other,) = pool.map(list, (ours, theirs))
    assert other["ready"] <= one["begun"], json.dumps([one, other])
    assert one["ended"] <= other["begun"] or other["ended"] <= one["begun"]
