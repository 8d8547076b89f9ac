"""How far loss curves are from each other, and how far they may be."""

import json

import pytest
import torch
from click.testing import CliRunner

from benchmarks.common.environment import Machine
from benchmarks.loss_curve import __main__ as loss_curve
from benchmarks.loss_curve.spec import CurveSpec, compare_curves
from benchmarks.loss_curve.worker import make_rows

CURVES = {"alone": [4.0, 3.0, 2.0], "alone in parts": [4.0, 3.125, 2.0]}


@pytest.mark.parametrize(
    ("losses", "distance", "equal"), [([4.0, 3.0, 1.5], 0.5, True), ([4.75, 3.0, 2.0], 0.75, False)]
)
def test_a_shared_curve_may_be_a_few_times_as_far_as_rounding(losses, distance, equal):
    parts, shared = compare_curves({**CURVES, "zero3": losses})
    assert parts == {"way": "alone in parts", "distance": 0.125, "equal": True}
    assert shared == {"way": "zero3", "distance": distance, "equal": equal}


def test_without_the_yardstick_nothing_is_compared():
    assert compare_curves({"alone": [1.0], "ddp": [1.0]}) == []


def test_rows_are_the_same_for_one_process_and_for_ranks():
    spec = CurveSpec("ddp", 2, "narrow", 1, 6, 3, 1, 0.1, "eager", "cpu", "float32")
    one, other = (make_rows(spec, 64, torch.Generator().manual_seed(0)) for _ in range(2))
    assert one.shape == (6, 7) and torch.equal(one, other)
    assert int(((one[:, 1:] - 7 * one[:, :-1]) % 64).max()) < 4


def test_a_run_that_fails_or_is_too_far_is_an_error(monkeypatch, tmp_path):
    curves = {**CURVES, "ddp": [4.0, 3.0, 2.0], "zero2": [4.0, 3.0, 9.0]}

    def run(spec, limit):
        return {"way": spec.way, **({"losses": curves[spec.way]} if spec.way in curves else {"error": "out of memory"})}

    monkeypatch.setattr(loss_curve, "inspect_machine", lambda backend: Machine({"gpu": None}, "cpu", "eager"))
    monkeypatch.setattr(loss_curve, "require_litgpt", lambda model: None)
    monkeypatch.setattr(loss_curve, "run", run)
    file = tmp_path / "loss-curve.json"
    assert CliRunner().invoke(loss_curve.main, ["--sharings", "ddp"]).exit_code == 0
    outcome = CliRunner().invoke(loss_curve.main, ["--sharings", "zero2", "--json", str(file)])
    assert outcome.exit_code == 1 and "zero2: farther from one process" in outcome.stdout
    assert [point["way"] for point in json.loads(file.read_text())["points"]] == ["alone", "alone in parts", "zero2"]
    outcome = CliRunner().invoke(loss_curve.main, ["--sharings", "zero3"])
    assert outcome.exit_code == 1 and "zero3: out of memory" in outcome.stderr
