"""The comparison of traces, run for real on one layer, and what it says of traces that differ."""

import json
from typing import Any

import forked_processes as forks
import pytest
import torch
from click.testing import CliRunner
from models import Block

from benchmarks.common import processes
from benchmarks.trace_equality.__main__ import find_problem, main
from benchmarks.trace_equality.pieces import Piece, find_pieces
from benchmarks.trace_equality.spec import KINDS, name_sets
from benchmarks.trace_equality.texts import Difference, find_difference
from benchmarks.zoo import Workload
from fusioncache.thunder_adapter.installation import TRACING

HERE = {"environment": {"gpu": None}, "device": "cpu", "backend": "eager", "problem": None}
X = torch.linspace(-1, 1, 32).reshape(2, 16)


def test_a_model_is_traced_with_and_without_shortcuts(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    file = tmp_path / "traces.json"
    options = ["--models", "falcon", "--layers", "1", "--kinds", "all", "--backend", "eager", "--json", str(file)]
    forks.use(monkeypatch)
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    (point,) = json.loads(file.read_text())["points"]
    assert (point["model"], point["layers"], point["way"], point["pieces"]) == ("falcon", 1, "jit", 1)
    assert (point["compared"], point["differing"]) == (["all"], {})
    assert point["traces"] > 8 and point["lines"] > 500
    assert "falcon" in done.stdout


def test_the_sets_are_all_groups_each_and_all_but_each():
    sets = dict(name_sets(KINDS, ("a", "b", "c")))
    assert sets["none, again"] == () and sets["all"] == ("a", "b", "c")
    assert sets["only b"] == ("b",) and sets["without b"] == ("a", "c")
    assert len(sets) == 8
    assert len(list(name_sets(KINDS, tuple(TRACING)))) == 2 + 2 * len(TRACING)


def test_what_dynamo_cuts_out_is_traced_as_thunder_gets_it():
    workload = Workload("block", Block(), (X,), torch.sum, 1, 1, "thunderfx")
    (piece,) = find_pieces(workload, [])
    assert piece.options["executors"] == [] and len(piece.inputs) > 1
    texts = piece.trace()
    assert {"prologue 1", "forward 1", "backward 1", "epilogue 1"} <= texts.keys()
    assert "linear" in texts["forward 1"]


def test_every_trace_of_a_call_is_read_and_reads_the_same_again():
    piece = Piece(Block(), {"executors": []}, (X,))
    texts = piece.trace()
    assert {"prologue 2", "forward 6", "backward 1", "epilogue 1"} <= texts.keys()
    assert find_difference(texts, piece.trace()) is None
    assert not any("milliseconds" in text for text in texts.values())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"a": "1\n2"}, None),
        ({"a": "1\n3"}, Difference("a", 2, "2", "3")),
        ({"a": "1"}, Difference("a", 2, "2", "")),
        ({"a": "1\n2", "b": ""}, Difference("b", 0, "missing", "there")),
        ({}, Difference("a", 0, "there", "missing")),
    ],
)
def test_the_first_line_that_differs_is_named(found, expected):
    assert find_difference({"a": "1\n2"}, found) == expected


def row(**changes: Any) -> dict[str, Any]:
    found = {"layers": 2, "way": "jit", "pieces": 1, "traces": 11, "lines": 9, "digest": "0", "differing": {}}
    return {**found, "compared": ["all"], "cpu_seconds": {"none": 2.0, "all": 1.0}, **changes}


def test_a_difference_is_named():
    wrong = row(differing={"all": {"trace": "piece 1, forward 1", "line": 3, "own": "a", "found": "b"}})
    expected = "1 of 1 differ, the first is all: piece 1, forward 1, line 3: 'b' in place of 'a'"
    assert find_problem(wrong) == {"error": expected}
    assert find_problem(row(traces=0)) == {"error": "there are no traces"}
    assert find_problem(row()) == {}


def invoke(monkeypatch: pytest.MonkeyPatch, options: list[str], answer: Any) -> Any:
    """The entry point's outcome where each worker is answered by a function of its spec."""
    monkeypatch.setattr(
        processes, "call", lambda module, spec: HERE if module.endswith("environment") else answer(spec)
    )
    return CliRunner().invoke(main, options)


def test_a_run_that_was_stopped_goes_on_with_the_models_that_are_left(tmp_path, monkeypatch):
    asked: list[str] = []

    def answer(spec: dict[str, Any]) -> dict[str, Any]:
        asked.append(spec["model"])
        return row()

    options = ["--layers", "2", "--resume", "--json", str(tmp_path / "traces.json")]
    for models in ("llama-3", "hf-bert,llama-3"):
        assert invoke(monkeypatch, ["--models", models, *options], answer).exit_code == 0
    assert asked == ["llama-3", "hf-bert"]
    points = json.loads((tmp_path / "traces.json").read_text())["points"]
    assert [point["model"] for point in points] == ["llama-3", "hf-bert"]
    other = invoke(monkeypatch, ["--models", "gemma", *options, "--kinds", "all"], answer)
    assert other.exit_code == 2 and "its kinds is" in other.stderr and asked == ["llama-3", "hf-bert"]


def test_a_model_that_fails_is_named_and_the_rest_still_runs(monkeypatch):
    def answer(spec: dict[str, Any]) -> dict[str, Any]:
        if spec["model"] == "gemma":
            raise processes.ProcessFailed("RuntimeError: out of ideas", "Traceback")
        return row()

    outcome = invoke(monkeypatch, ["--models", "gemma,phi", "--layers", "2"], answer)
    assert outcome.exit_code == 1
    assert "error: gemma, 2 layers: RuntimeError: out of ideas" in outcome.stdout
    assert "error: phi" not in outcome.stdout
