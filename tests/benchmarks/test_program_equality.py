"""The comparison of programs, run for real on one layer, and what it says of a second process that did otherwise."""

import json
from typing import Any

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.program_equality.__main__ import main
from benchmarks.program_equality.interpretation import watch_interpreter
from benchmarks.program_equality.report import find_differing, find_problem, make_point
from benchmarks.program_equality.spec import FIRST, SECOND, THUNDER
from benchmarks.zoo.spec import ZooSpec

HERE = {"environment": {"gpu": None}, "device": "cpu", "backend": "eager", "problem": None}
SPEC = ZooSpec("falcon", 1, "inductor", "cpu", "float32")


def test_a_second_process_trains_a_model_with_a_stored_program(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    file = tmp_path / "programs.json"
    forks.use(monkeypatch, shortcuts=True)
    done = CliRunner().invoke(main, ["--models", "falcon", "--layers", "1", "--backend", "eager", "--json", str(file)])
    assert done.exit_code == 0, done.output
    (point,) = json.loads(file.read_text())["points"]
    assert (point["model"], point["layers"], point["way"]) == ("falcon", 1, "jit")
    assert point["tensors"] > 20 and point["differing"] == {FIRST: [], SECOND: []}
    assert (point[FIRST]["traces"], point[FIRST]["programs_made"]) == (1, 1)
    assert point[SECOND]["programs_loaded"] == 1 and "traces" not in point[SECOND]
    assert f"{point['tensors']}, {point['tensors']} of {point['tensors']}" in done.stdout


def test_traces_are_counted_and_the_interpreter_can_be_taken_away():
    import thunder
    import torch

    x = torch.ones(2)
    with watch_interpreter(allowed=True) as found:
        thunder.jit(torch.sin)(x)
    assert found.traces == 1
    with watch_interpreter(allowed=False) as found, pytest.raises(AssertionError, match="interpreter was called"):
        thunder.jit(torch.cos)(x)
    assert found.traces == 1
    assert thunder.jit(torch.cos)(x).equal(torch.cos(x))


def say(**changes: Any) -> dict[str, Any]:
    counts = {"traces": 0, "programs_made": 0, "programs_loaded": 0, "compiles": 0, "loads": 0}
    counts |= {"regions": 5, "templates": 5}
    reasons = {"programs_refused": {}, "unkept": {}, "bypasses": {}, "explained": []}
    facts = {"layers": 1, "way": "jit", "digests": {"loss": "1", "output": "2"}, "seconds": 0.1, "program_seconds": {}}
    return {**facts, **counts, **reasons, **changes}


LOADED = say(programs_loaded=1, loads=5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({SECOND: say(traces=1, error="AssertionError: x")}, "0 of 1 programs are loaded: AssertionError: x"),
        ({SECOND: say(traces=1, explained=["why"], error="x")}, "0 of 1 programs are loaded: why"),
        (
            {FIRST: say(traces=1, programs_refused={"random": 1}), SECOND: say()},
            "0 of 1 programs are loaded: random",
        ),
        ({SECOND: say()}, "0 of 1 programs are loaded: nothing says why"),
        ({SECOND: {**LOADED, "compiles": 2}}, "the second process compiles 2"),
        ({SECOND: {**LOADED, "digests": {"loss": "3"}}}, "second: 2 of 2 tensors differ, the first is loss"),
        (
            {FIRST: say(traces=1, digests={"loss": "3", "output": "2"})},
            "first: 1 of 2 tensors differ, the first is loss",
        ),
        ({THUNDER: say(error="ValueError: y")}, "thunder: ValueError: y"),
    ],
)
def test_what_a_second_process_does_otherwise_is_named(changes, says):
    said = {THUNDER: say(), FIRST: say(traces=1, programs_made=1, compiles=5), SECOND: LOADED, **changes}
    assert make_point(SPEC, said).get("error") == says


def test_what_the_eager_backend_compiles_is_nothing():
    spec = ZooSpec("falcon", 1, "eager", "cpu", "float32")
    said = {THUNDER: say(), FIRST: say(traces=1), SECOND: {**LOADED, "compiles": 2}}
    assert find_problem(spec, said, {}) is None


def test_tensors_that_one_process_lacks_differ():
    assert find_differing({"a": "1", "b": "2"}, {"a": "1", "c": "2"}) == ["b", "c"]


def test_a_model_that_fails_is_named_and_the_rest_still_runs(monkeypatch):
    asked = []

    def call(module: str, argument: Any, *, caches: Any = None, environment: Any = None) -> Any:
        if module.endswith("environment"):
            return HERE
        asked.append((argument["spec"]["model"], argument["process"], environment["PYTHONHASHSEED"]))
        if argument["spec"]["model"] == "gemma":
            raise processes.ProcessFailed("RuntimeError: out of ideas", "Traceback")
        (caches / "fusioncache_dir").mkdir(exist_ok=True)
        return {THUNDER: say(), FIRST: say(traces=1, programs_made=1), SECOND: LOADED}[argument["process"]]

    monkeypatch.setattr(processes, "call", call)
    done = CliRunner().invoke(main, ["--models", "gemma,phi", "--backend", "eager"])
    assert done.exit_code == 1
    assert "error: gemma, 2 layers: RuntimeError: out of ideas" in done.stdout
    assert "error: phi" not in done.stdout
    assert asked == [("gemma", THUNDER, "0"), ("phi", THUNDER, "0"), ("phi", FIRST, "1"), ("phi", SECOND, "2")]
