"""The processes that compile ahead: what they say arrives, and one that dies costs the entry that it was at."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from fusioncache.precompile import workers

# Speaks as a worker does: "kill" kills it, "garbage" is answered with what is none.
_WORKER = """
import json, os, signal, sys
with open(sys.argv[1] + "/started", "a") as file:
    file.write("x")
if os.path.exists(sys.argv[1] + "/broken"):
    sys.exit(1)
print("ready", flush=True)
for line in sys.stdin:
    id_ = json.loads(line)
    if id_.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    print("garbage" if id_ == "garbage" else json.dumps(["refused", id_]), flush=True)
"""


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        workers, "worker_command", lambda directory: [sys.executable, "-S", "-c", _WORKER, str(directory)]
    )


def reasons(directory: Path, ids: list[str], jobs: int = 2) -> Counter[str]:
    return Counter(outcome.reason for outcome in workers.compile_in_workers(directory, ids, jobs))


def started(directory: Path) -> int:
    return len((directory / "started").read_text())


def test_each_entry_has_an_outcome(tmp_path):
    ids = [f"entry {number}" for number in range(20)]
    assert reasons(tmp_path, ids) == Counter(ids)
    assert 1 <= started(tmp_path) <= 2


def test_no_more_start_than_there_are_entries(tmp_path):
    assert reasons(tmp_path, ["one"], jobs=8) == {"one": 1}
    assert started(tmp_path) == 1
    assert reasons(tmp_path, []) == {}


def test_a_worker_that_dies_costs_one_entry(tmp_path):
    assert reasons(tmp_path, ["a", "kill 1", "b", "garbage", "kill 2", "c"], jobs=1) == {
        "a": 1, "b": 1, "c": 1, "worker died": 3,
    }  # fmt: skip
    assert started(tmp_path) == 4


def test_workers_that_do_not_start_are_not_tried_for_every_entry(tmp_path):
    (tmp_path / "broken").touch()
    assert reasons(tmp_path, ["a", "b", "c", "d"]) == {"no worker starts": 4}
    assert started(tmp_path) == 2


def test_no_worker_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "worker_command", lambda directory: [str(tmp_path / "no such program")])
    assert reasons(tmp_path, ["a"]) == {"no worker starts": 1}


def test_who_stops_looking_leaves_no_process(tmp_path):
    outcomes = workers.compile_in_workers(tmp_path, ["a", "b", "c"], 1)
    next(outcomes)
    outcomes.close()  # waits for the threads, and so for the processes
    assert started(tmp_path) == 1
