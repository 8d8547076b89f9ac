"""The comparison of models, run for real with the backend that compiles nothing."""

import json
from typing import Any

import forked_processes as forks
import pytest
import torch
from click.testing import CliRunner
from thunder_versions import VERSION

from benchmarks.common import processes
from benchmarks.common.tensors import compare, count_epsilons, same_bits
from benchmarks.equality.__main__ import find_problem, main, mark_growth

HERE = {"environment": {"gpu": None}, "device": "cpu", "backend": "eager", "problem": None}


def test_a_model_is_compared_and_its_templates_counted(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    file = tmp_path / "equal.json"
    options = ["--models", "falcon", "--layers", "1", "--backend", "eager", "--host-time", "--rounds", "2"]
    forks.use(monkeypatch, shortcuts=True)
    done = CliRunner().invoke(main, [*options, "--json", str(file)])
    assert done.exit_code == 0, done.output
    result = json.loads(file.read_text())
    assert result["environment"]["versions"]["thunder"] == VERSION
    (point,) = result["points"]
    assert (point["model"], point["layers"], point["real_layers"], point["way"]) == ("falcon", 1, 32, "jit")
    assert point["bitwise"] == point["tensors"] > 20
    assert point["templates"] == point["compiles"] <= point["regions"] == point["reference_compiles"]
    assert point["hits"] == point["regions"] - point["templates"]
    assert (point["bypasses"], point["folded"], point["not_repeatable"]) == ({}, 0, [])
    assert set(point["host"]["microseconds"]) == {"plain", "fusioncache"}
    assert f"{point['tensors']}/{point['tensors']}" in done.stdout


def row(**changes: Any) -> dict[str, Any]:
    found = {"tensors": 3, "bitwise": 3, "differing": [], "largest_epsilons": 0.0, "bypasses": {}, "folded": 0}
    counts = {"regions": 9, "templates": 5, "hits": 4, "compiles": 5, "reference_compiles": 9}
    same = {"not_finite": [], "not_repeatable": [], "layers": 2, "real_layers": 32, "way": "jit"}
    return {"model": "llama-3", **found, **counts, **same, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"differing": ["loss"], "largest_epsilons": 0.5}, "1 of 3 differ, the first is loss; 0.5 epsilons at most"),
        ({"regions": 0}, "there are no regions to share"),
        ({"not_finite": ["output"]}, "not finite: output"),
        ({"differing": ["loss", "x"], "not_repeatable": ["x"]}, "1 of 3 differ, the first is loss"),
        ({"differing": ["loss"], "not_repeatable": ["loss"]}, None),
        ({}, None),
    ],
)
def test_what_is_wrong_with_a_comparison_is_named(changes, says):
    problem = find_problem(row(**changes))
    assert problem == says if says is None else problem is not None and problem.startswith(says)


def test_templates_that_grow_with_depth_are_an_error():
    rows = [row(layers=layers, templates=count) for layers, count in ((1, 4), (2, 5), (3, 5), (4, 6))]
    mark_growth(rows)
    assert [found.get("error") for found in rows] == [None, None, None, "6 templates, at 2 layers 5"]


def test_bits_are_compared_and_not_values():
    one = torch.tensor([0.0, 1.0])
    assert same_bits(one, one.clone())
    assert not same_bits(one, torch.tensor([-0.0, 1.0]))
    assert not same_bits(one, one.double()) and not same_bits(one, one[None]) and not same_bits(one, None)
    assert same_bits(torch.tensor(float("nan")), torch.tensor(float("nan")))
    assert count_epsilons(one + torch.tensor([0.0, 2.0**-22]), one) == 2.0


def test_a_missing_tensor_differs():
    loss = {"loss": torch.tensor(1.0)}
    result = compare({}, loss, loss)
    assert (result["tensors"], result["bitwise"], result["differing"]) == (1, 0, ["loss"])
    assert compare(loss, loss, {"loss": torch.tensor(2.0)})["not_repeatable"] == ["loss"]


def invoke(monkeypatch: pytest.MonkeyPatch, options: list[str], answer: Any) -> Any:
    """The entry point's outcome where each worker is answered by a function of its point."""
    monkeypatch.setattr(
        processes, "call", lambda module, point: HERE if module.endswith("environment") else answer(point)
    )
    return CliRunner().invoke(main, options)


def test_a_failure_and_a_difference_are_reported_and_the_rest_still_runs(monkeypatch):
    def answer(point: dict[str, Any]) -> dict[str, Any]:
        if point["layers"] == 2:
            raise processes.ProcessFailed("RuntimeError: out of ideas", "Traceback")
        wrong = {"differing": ["loss"], "bitwise": 2} if point["layers"] is None else {}
        return row(layers=point["layers"] or 32, bypasses={"random state": 1}, **wrong)

    outcome = invoke(monkeypatch, ["--models", "llama-3", "--layers", "2,3,real", "--jobs", "3"], answer)
    assert outcome.exit_code == 1
    assert "error: llama-3, 2 layers: RuntimeError: out of ideas" in outcome.stdout
    assert "error: llama-3, 32 layers: 1 of 3 differ, the first is loss" in outcome.stdout
    assert "bypassed: llama-3, 3 layers: 1 x random state" in outcome.stdout
    assert "error: llama-3, 3 layers" not in outcome.stdout
