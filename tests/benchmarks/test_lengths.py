"""The benchmark of many lengths: what it asks its processes, and what it makes of their answers."""

import json

import pytest
import torch
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.compiled import pad_to_powers_of_two
from benchmarks.common.environment import Machine
from benchmarks.lengths import __main__ as lengths

OPTIONS = ["--lengths", "64,96,64", "--random", "2", "--between", "10", "20", "--ways", "fusioncache-static,thunder"]


def answer(argument):
    found = [
        {"length": n, "seconds": 1.0 / (1 + i), "compiles": 2, "traces": 1} for i, n in enumerate(argument["lengths"])
    ]
    return {"steps": found, "later": [{"length": 64, "step_ms": 3.0, "error": 1e-6}]}


@pytest.fixture
def calls(monkeypatch):
    """What the processes are asked. Thunder alone fails."""
    found = []

    def call(module, argument, *, environment, limit):
        found.append((argument, dict(environment), limit))
        if argument["way"] == "thunder":
            raise processes.ProcessFailed("RuntimeError: out of ideas", "its log")
        return answer(argument)

    monkeypatch.setattr(lengths, "inspect_machine", lambda backend: Machine({"gpu": None, "cpus": 2}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    return found


def test_every_way_gets_the_same_lengths_in_the_same_order(calls, tmp_path):
    file, picture = tmp_path / "lengths.json", tmp_path / "lengths.svg"
    outcome = CliRunner().invoke(
        lengths.main, [*OPTIONS, "--limit", "9", "--json", str(file), "--plot", str(picture)], catch_exceptions=False
    )
    assert outcome.exit_code == 1 and "thunder: RuntimeError: out of ideas" in outcome.stdout
    (first, environment, limit), (second, none, _) = calls
    assert first["lengths"] == second["lengths"]
    assert first["lengths"][:3] == (64, 96, 64) and all(10 <= length <= 20 for length in first["lengths"][3:])
    assert (environment, none, limit) == ({"FUSIONCACHE_SIZES": "static"}, {}, 9.0)
    good, bad = json.loads(file.read_text())["points"]
    assert [step["length"] for step in good["steps"]] == list(first["lengths"]) and bad["error"]
    assert "6" in outcome.stdout.split("fusioncache-static")[1]  # compiles from the third step on
    assert picture.read_text().startswith("<?xml")


def test_what_is_no_length_is_refused():
    for wrong in (["--lengths", "64,x"], ["--lengths", "0"], ["--between", "20", "10"]):
        assert CliRunner().invoke(lengths.main, wrong).exit_code == 2


def test_padded_calls_have_the_lengths_that_were_asked_for():
    seen = []
    call = pad_to_powers_of_two(lambda tokens: seen.append(tokens.shape[1]) or tokens)
    for length in (1, 2, 3, 64, 65):
        tokens = torch.arange(length)[None]
        assert torch.equal(call(tokens), tokens)
    assert seen == [1, 2, 4, 64, 128]
