"""The benchmark of generating text: one way measured on a CPU, and what it makes of the answers of its processes."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.inference import __main__ as inference
from benchmarks.inference import worker


@pytest.mark.parametrize("way", ["eager", "fusioncache"])
def test_a_way_generates_tokens(way, monkeypatch):
    monkeypatch.setattr(worker, "use_backend", lambda backend: None)
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: "eager")
    options = {"width": "narrow", "layers": 1, "prompts": [6, 9], "tokens": 9, "repeat": 1, "dtype": "float32"}
    where = {"grad_mode": "no_grad", "backend": "eager", "device": "cpu"}
    found = worker.measure({"way": way, **options, **where})
    assert [len(each["tokens"]) for each in found["later"]] == [9, 9]
    assert found["error"] < 1e-4
    counts = [(each["compiles"] > 0, each["traces"]) for each in found["prompts"]]
    assert counts == ([(False, 0)] * 2 if way == "eager" else [(True, 2), (True, 1)])
    assert found["later_counts"] == {"compiles": 0, "traces": 0}


def answer(argument):
    tokens = [1, 2, 3] if argument["way"] == "eager" else [1, 2, 4]
    prompts = [
        {"length": each, "first": 1.0, "second": 0.5, "compiles": 7, "traces": 1} for each in argument["prompts"]
    ]
    later = [
        {"length": each, "first": 0.1, "tokens_per_second": 50.0, "tokens": tokens, "peak_bytes": None}
        for each in argument["prompts"]
    ]
    counts = {"compiles": 0, "traces": 0}
    return {"prompts": prompts, "later": later, "later_counts": counts, "host_ms": 2.0, "digest": "d", "error": 0.0}


def test_ways_are_compared_with_eager_and_with_thunder(monkeypatch, tmp_path):
    asked = []

    def call(module, argument, *, limit):
        asked.append(argument)
        if argument["way"] == "torch.compile":
            raise processes.ProcessFailed("RuntimeError: out of ideas", "its log")
        return answer(argument)

    monkeypatch.setattr(inference, "inspect_machine", lambda backend: Machine({"gpu": None, "cpus": 2}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    file = tmp_path / "inference.json"
    options = ["--prompts", "5,7,6", "--json", str(file), "--width", "real", "--layers", "2"]
    outcome = CliRunner().invoke(inference.main, options, catch_exceptions=False)
    assert outcome.exit_code == 1 and "torch.compile: RuntimeError: out of ideas" in outcome.stdout
    assert [each["way"] for each in asked] == ["eager", "torch.compile", "thunder", "fusioncache"]  # no GPU, no graphs
    assert {(each["prompts"], each["width"], each["dtype"]) for each in asked} == {((5, 7, 6), "real", "float32")}
    row = outcome.stdout.split(" fusionc")[1].split("\n")[0]
    assert row.split()[-4:] == ["7", "1", "6/9", "yes"]  # of the third prompt alone
    assert len(json.loads(file.read_text())["points"]) == 4
