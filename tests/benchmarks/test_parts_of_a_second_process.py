"""The benchmark of second processes. What it measures has tests of its own; no time is asserted."""

import json

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.second_process import __main__ as second_process


def say(digest: str, total: float) -> dict[str, object]:
    return {"seconds": {"trace": total / 2, "rest": total / 2, "total": total}, "digest": digest}


@pytest.mark.parametrize(("bits", "code"), [("aaa", 0), ("aab", 1)])
def test_pairs_of_processes_share_directories_and_must_have_the_same_bits(monkeypatch, tmp_path, bits, code):
    calls = []

    def call(module, argument, *, caches, environment):
        calls.append((module.rpartition(".")[2], caches, environment["FUSIONCACHE_PROGRAMS"]))
        if module.endswith("peer"):
            return {"trace": 1.0, "compile": 2.0, "rest": 0.0, "total": 3.0, "after_trace": 2.0}
        return say(bits[len(calls) - 1], float(len(calls)))

    monkeypatch.setattr(second_process, "inspect_machine", lambda backend: Machine({"gpu": None}, "cpu", "inductor"))
    monkeypatch.setattr(processes, "call", call)
    options = ["--layers", "2", "--ways", "thunder,programs,torch.compile", "--json", str(tmp_path / "second.json")]
    outcome = CliRunner().invoke(second_process.main, options)
    assert outcome.exit_code == code, outcome.output
    assert [(name, programs) for name, _, programs in calls] == [
        *(("thunder", "0"), ("worker", "1"), ("worker", "1"), ("peer", "0"), ("peer", "0"))
    ]
    assert calls[1][1] == calls[2][1] != calls[0][1]
    points = json.loads((tmp_path / "second.json").read_text())["points"]
    assert [(point["way"], point["process"]) for point in points] == [
        *(("thunder", "cold"), ("programs", "cold"), ("programs", "warm")),
        *(("torch.compile", "cold"), ("torch.compile", "warm")),
    ]
    assert [point.get("correct") for point in points] == [bits == "aaa"] * 3 + [None] * 2


def test_a_process_that_dies_is_said(monkeypatch, tmp_path):
    def call(*_, **__):
        raise processes.ProcessFailed("it died", "log")

    monkeypatch.setattr(second_process, "inspect_machine", lambda backend: Machine({"gpu": None}, "cpu", "inductor"))
    monkeypatch.setattr(processes, "call", call)
    outcome = CliRunner().invoke(second_process.main, ["--layers", "2", "--ways", "programs"])
    assert outcome.exit_code == 1
    assert "2 layers, programs, warm: it died" in outcome.output


def test_the_second_process_loads_the_program_of_the_first(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    file = tmp_path / "second.json"
    options = ["--model", "residual", "--layers", "2", "--backend", "eager", "--ways", "programs", "--json", str(file)]
    outcome = CliRunner().invoke(second_process.main, options)
    assert outcome.exit_code == 0, outcome.output
    cold, warm = json.loads(file.read_text())["points"]
    assert [point["repeats"][0]["counts"]["traces"] for point in (cold, warm)] == [1, 0]
    assert [point["repeats"][0]["counts"]["programs_loaded"] for point in (cold, warm)] == [0, 1]
    assert sum(warm["seconds"][part] for part in ("key", "reads", "load", "build")) > 0
    assert cold["correct"] and warm["correct"]
