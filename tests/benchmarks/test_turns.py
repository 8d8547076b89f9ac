"""Processes of a benchmark that get ready together, and measure one at a time."""

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from pool_processes import wait_until

from benchmarks.common.processes import ProcessFailed
from benchmarks.common.turns import call_in_turns

WORKER = """
import os
import time
from pathlib import Path
from benchmarks.common.processes import serve
from benchmarks.common.turns import turn

def measure(given):
    Path(given["folder"], str(os.getpid())).touch()
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


@pytest.fixture
def make_arguments(tmp_path):
    """Makes arguments for processes, each of which leaves a file in a folder when it has started."""
    (tmp_path / "started").mkdir()

    def make(*seconds, dies=None):
        folder = str(tmp_path / "started")
        return [{"seconds": each, "dies": number == dies, "folder": folder} for number, each in enumerate(seconds)]

    return make


def test_nobody_measures_before_all_are_ready_or_beside_another(worker, make_arguments):
    answers = list(call_in_turns(worker, make_arguments(0.0, 0.4, 0.2), 3))
    turns = sorted(answers, key=lambda each: each["begun"])
    assert max(each["ready"] for each in answers) <= turns[0]["begun"]
    assert all(one["ended"] <= other["begun"] for one, other in pairwise(turns))


def test_one_that_dies_holds_nobody_up_and_answers_come_in_order(worker, make_arguments):
    first, second, third = call_in_turns(worker, make_arguments(0.2, 0.0, 0.0, dies=1), 2)
    assert isinstance(second, ProcessFailed) and "3" in second.message
    assert first["ended"] < third["begun"]


def test_benchmarks_that_are_started_together_take_turns_with_each_other(worker, make_arguments, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_TURNS", str(tmp_path / "lock"))
    ours, theirs = call_in_turns(worker, make_arguments(0.0), 1), call_in_turns(worker, make_arguments(0.5), 1)
    with (tmp_path / "lock").open("w") as lock, ThreadPoolExecutor(2) as pool:
        fcntl.flock(lock, fcntl.LOCK_SH)  # so that neither is ready before the other has started
        answers = pool.map(list, (ours, theirs))
        wait_until(lambda: len(list((tmp_path / "started").iterdir())) == 2)
        fcntl.flock(lock, fcntl.LOCK_UN)
        (one,), (other,) = answers
    assert other["ready"] <= one["begun"], json.dumps([one, other])
    assert one["ended"] <= other["begun"] or other["ended"] <= one["begun"]
