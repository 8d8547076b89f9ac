"""The benchmark of second processes. What it measures has tests of its own; no time is asserted."""

import json
from types import SimpleNamespace

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.figures import warm
from benchmarks.second_process import __main__ as second_process


def say(digest: str, total: float) -> dict[str, object]:
    return {"seconds": {"trace": total / 2, "rest": total / 2, "total": total}, "digest": digest}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the benchmark with processes of which a function says what they do; returns how it ended, and its points."""

    def run_with(call, *options):
        machine = Machine({"gpu": None}, "cpu", "inductor")
        monkeypatch.setattr(second_process, "inspect_machine", lambda backend: machine)
        monkeypatch.setattr(processes, "call", call)
        file = tmp_path / "second.json"
        outcome = CliRunner().invoke(second_process.main, ["--layers", "2", "--json", str(file), *options])
        return outcome, json.loads(file.read_text())["points"]

    return run_with


@pytest.mark.parametrize(("bits", "code"), [("aaa", 0), ("aab", 1)])
def test_pairs_of_processes_share_directories_and_must_have_the_same_bits(run, bits, code):
    calls, digests = [], iter(bits)

    def call(module, argument, *, caches, environment, limit):
        calls.append((module.rpartition(".")[2], caches, environment["FUSIONCACHE_PROGRAMS"]))
        assert limit is None
        if module.endswith("peer"):
            return {"trace": 1.0, "compile": 2.0, "rest": 0.0, "total": 3.0, "after_trace": 2.0}
        return say(next(digests), float(len(calls)))

    outcome, points = run(call, "--ways", "thunder,programs,torch.compile")
    assert outcome.exit_code == code, outcome.output
    assert [(name, programs) for name, _, programs in calls] == [
        *(("worker", "1"), ("worker", "1"), ("peer", "0"), ("peer", "0"), ("thunder", "0"))
    ]
    assert calls[0][1] == calls[1][1] != calls[2][1] == calls[3][1]
    assert [(point["way"], point["process"]) for point in points] == [
        *(("thunder", "cold"), ("programs", "cold"), ("programs", "warm")),
        *(("torch.compile", "cold"), ("torch.compile", "warm")),
    ]
    assert [point.get("correct") for point in points] == [bits == "aaa"] * 3 + [None] * 2


def test_a_process_that_dies_costs_its_own_results_only(run):
    called = []

    def call(module, argument, *, environment, **_):
        called.append(module)
        if environment["FUSIONCACHE_PROGRAMS"] == "1":
            raise processes.ProcessFailed("it died", "log")
        return say("a", 1.0)

    outcome, points = run(call, "--ways", "thunder,programs", "--repeat", "2")
    assert outcome.exit_code == 1 and len(called) == 4
    assert "2 layers, programs, cold: it died" in outcome.output
    assert [point.get("error") for point in points] == [None, "it died", "not run: the first process failed"]
    assert points[1]["log"] == "log" and points[0]["correct"]


def test_of_several_pairs_those_that_did_not_fail_count(run):
    failures = iter([False, True, False, False])

    def call(*_, **__):
        if next(failures):
            raise processes.ProcessFailed("it died", "log")
        return say("a", 1.0)

    outcome, (cold, warm) = run(call, "--ways", "programs", "--repeat", "2")
    assert outcome.exit_code == 1
    assert "error" not in cold and (len(cold["repeats"]), len(warm["repeats"])) == (2, 1)
    assert warm["error"] == "it died" and warm["seconds"]["total"] == 1.0


def test_no_process_outlives_the_time_for_all(run, monkeypatch):
    now = [5.0]
    monkeypatch.setattr(second_process, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def call(module, argument, *, limit, **_):
        assert limit == 1
        now[0] += 1
        return say("a", 1.0)

    outcome, points = run(call, "--ways", "programs", "--limit", "1")
    assert outcome.exit_code == 1
    assert [point.get("error") for point in points] == [None, "not run: there was no time left"]


def test_a_process_is_ended_at_its_limit(tmp_path):
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(processes.ProcessFailed, match="ended after 0 s"):
        processes.call(tmp_path / "sleeper.py", {}, limit=0.2)


def test_the_table_has_a_row_for_each_process_and_says_which_failed():
    parts = {"key": 0.1, "reads": 0.001, "load": 0.02, "build": 0.0, "trace": 0.01, "guards": 0.002, "rest": 0.1}
    measured = {"seconds": parts | {"total": 0.3}, "repeats": [{"counts": {"traces": 0}}]}
    points = [
        {"layers": 8, "way": "programs", "process": "cold", "error": "it died"},
        {"layers": 8, "way": "programs", "process": "warm"} | measured,
    ]
    options = {"width": "real", "model": "llama"}
    *_, failed, loaded = warm.tabulate_parts({"environment": {"options": options}, "points": points}).splitlines()
    assert failed.split(" | ")[:4] == ["| Llama-2-7b, 8 layers", "programs", "cold", "failed"]
    assert [cell.strip() for cell in loaded.split("|")[4:8]] == ["0.30 s", "0.01 s", "100 ms", "1 ms"]


def test_the_second_process_loads_the_program_of_the_first(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    file = tmp_path / "second.json"
    options = ["--model", "residual", "--layers", "2", "--backend", "eager", "--ways", "programs", "--json", str(file)]
    outcome = CliRunner().invoke(second_process.main, options)
    assert outcome.exit_code == 0, outcome.output
    first, second = json.loads(file.read_text())["points"]
    assert [point["repeats"][0]["counts"]["traces"] for point in (first, second)] == [1, 0]
    assert [point["repeats"][0]["counts"]["programs_loaded"] for point in (first, second)] == [0, 1]
    assert sum(second["seconds"][part] for part in ("key", "reads", "load", "build")) > 0
    assert first["correct"] and second["correct"]
