"""The comparison at many batches and lengths, run for real on one layer, and what it says of results that are wrong."""

import json
from typing import Any

import forked_processes as forks
import pytest
import torch
from click.testing import CliRunner

from benchmarks.length_equality.__main__ import find_problem, list_later, main
from benchmarks.length_equality.spec import Spec, name_kind
from benchmarks.length_equality.worker import cut


def test_a_model_is_right_at_every_length_and_compiles_for_two_of_them(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    file = tmp_path / "lengths.json"
    forks.use(monkeypatch, shortcuts=True)
    options = ["--models", "falcon", "--layers", "1", "--backend", "eager", "--batches", "2", "--lengths", "8,12,9"]
    done = CliRunner().invoke(main, [*options, "--json", str(file)])
    assert done.exit_code == 0, done.output
    (point,) = json.loads(file.read_text())["points"]
    first, second, third = point["steps"]
    assert first["compiles"] > 5 and second["generalizations"] == second["compiles"] > 5
    assert (third["compiles"], third["general_hits"]) == (0, second["compiles"])
    assert all(step["bitwise"] == step["tensors"] > 5 for step in point["steps"])
    assert "error" not in point and f"{3 * first['tensors']}" in done.stdout


def step(**changes: Any) -> dict[str, Any]:
    right = {"batch": 2, "length": 8, "kind": "many", "compiles": 0, "tensors": 3, "bitwise": 3, "differing": []}
    return {**right, "largest_epsilons": 0.0, "not_finite": [], "not_repeatable": [], **changes}


WRONG = {"differing": ["output"], "largest_epsilons": 3.0}


@pytest.mark.parametrize(
    ("steps", "epsilons", "says"),
    [
        ([step(compiles=9), step(compiles=9), step()], 0, None),
        ([step(compiles=9), step(compiles=9), step(length=9, compiles=1)], 0, "2 rows of 9: 1 compiled"),
        ([step(compiles=9), step(compiles=9), step(batch=3, compiles=9), step(batch=3)], 0, None),
        ([step(), step(), step(batch=3), step(batch=3, compiles=1)], 0, "3 rows of 8: 1 compiled"),
        ([step(), step(), step(batch=3), step(batch=4, compiles=1)], 0, "4 rows of 8: 1 compiled"),
        ([step(**WRONG)], 0, "2 rows of 8: 1 tensors differ, the first is output; 3 epsilons at most"),
        ([step(**WRONG)], 4, None),
        ([step(**WRONG, not_repeatable=["output"])], 0, None),
        ([step(not_finite=["loss"])], 0, "2 rows of 8: loss is not finite"),
    ],
)
def test_what_is_wrong_is_named(steps, epsilons, says):
    assert find_problem(steps, epsilons) == ({"error": says} if says else {})


def test_sizes_of_one_are_counted_for_themselves():
    kinds = ["many", "one row", "many", "one row", "one token", "many"]
    steps = [step(kind=kind, length=length) for length, kind in enumerate(kinds)]
    assert [each["length"] for each in list_later(steps)] == [5]
    assert [name_kind(*sizes) for sizes in ((2, 8), (1, 8), (3, 1), (1, 1))] == [
        "many", "one row", "one token", "one row, one token"
    ]  # fmt: skip


def test_every_batch_has_all_lengths():
    spec = Spec.read(
        {**dict.fromkeys(("model", "layers", "backend", "device", "dtype")), "batches": [2, 1], "lengths": [8, 9]}
    )
    assert list(spec.settings()) == [(2, 8), (2, 9), (1, 8), (1, 9)]


def test_what_is_as_long_as_a_row_is_cut():
    mask = torch.arange(3 * 1 * 5 * 5).reshape(3, 1, 5, 5)
    assert cut(mask, 2, 4, 5).equal(mask[:2, :, :4, :4])
    pixels = torch.ones(3, 4, 6)
    assert cut(pixels, 2, 4, 5).equal(pixels[:2])
