"""The scaling benchmark, run for real with the backend that compiles nothing, and what it makes of points. No time is
asserted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.results import Outcome
from benchmarks.scaling import run as runs
from benchmarks.scaling.__main__ import main
from benchmarks.scaling.spec import PHASES, Spec

RESIDUAL = Spec(
    model="residual",
    layers=3,
    mode="uncached",
    recompute=True,
    grad=False,
    backend="eager",
    device="cpu",
    dtype="float32",
    size=10,
)


def test_a_run_writes_points_that_agree_tables_and_a_plot(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    monkeypatch.setenv("FUSIONCACHE_COMMIT", "abc-dirty")
    files = ("--json", str(tmp_path / "new" / "bench.json"), "--plot", str(tmp_path / "bench.svg"))
    options = ("--recompute", "--grad", "--layers", "2", "--backend", "eager", "--steps", "1")
    done = CliRunner().invoke(
        main, [*options, "--modes", "warm,cached,own,uncached,lru", *files], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "first step" in done.stdout and "lru skipped" in done.stdout
    assert "residual, 2 layers, uncached: " in done.stderr
    assert "<svg" in (tmp_path / "bench.svg").read_text()

    result = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert set(result) == {"schema", "environment", "points", "summary", "notes"}
    assert result["schema"] == 1
    assert result["environment"]["commit"] == "abc-dirty"
    assert result["environment"]["versions"]["thunder"] == "0.2.6"
    assert result["environment"]["options"]["layers"] == [2]
    assert [(point["mode"], point["recompute"]) for point in result["points"]] == [
        *(("cached", True), ("warm", True), ("own", False), ("uncached", True))
    ]
    for point in result["points"]:
        check_point(point)
    cached, warm, _, uncached = result["points"]
    assert cached["regions"] == warm["regions"] == uncached["regions"] == uncached["compiles"]
    assert cached["templates"] <= 4 and uncached["templates"] is None
    # tanh's backward pass wants tanh, and no sum: there is nothing that own recompute could leave out.
    assert [bool(point["choices"]) for point in result["points"]] == [True, True, False, False]
    assert [record["layers"] for record in result["summary"]["ratios"]["uncached/own"]] == [2]


def check_point(point: dict[str, Any]) -> None:
    options = {"model": "residual", "grad": True, "backend": "eager", "repeat": 1}
    assert options.items() <= point.items()
    assert set(point["seconds"]) == set(PHASES)
    parts = sum(point["seconds"][name] for name in ("trace", "canonicalize", "compile", "load", "run"))
    assert parts == pytest.approx(point["seconds"]["first_step"], abs=1e-4)
    assert len(point["checksum"]) == 64
    assert point["bypasses"] == {} and "error" not in point
    assert point["bitwise"] == {"to": "uncached", "results": 5, "equal": True, "must_be": True}
    assert len(point["repeats"]) == 1 and 0 <= point["share"] < 1
    assert point["steady"]["forward"] > 0 and point["steady"]["compiles"] == 0


def test_a_mode_over_the_limit_stops_and_says_so(tmp_path, monkeypatch):
    here = {"environment": {"gpu": None, "cpus": 2}, "device": "cpu", "backend": "eager", "problem": None}
    monkeypatch.setattr(
        processes, "call", lambda module, spec, **where: here if module.endswith("environment") else answer("a")
    )
    plot = tmp_path / "bench.png"
    options = ["--no-recompute", "--no-grad", "--layers", "1,2", "--modes", "cached", "--limit", "0"]
    done = CliRunner().invoke(main, [*options, "--plot", str(plot)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "cached stopped at 1 layers" in done.stdout and "over the limit of 0 s" in done.stdout
    assert "2 layers" not in done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "1,x"], "'1,x' is no list of positive numbers"),
        (["--layers", "0,1"], "'0,1' is no list of positive numbers"),
        (["--modes", "cached,hot"], "'hot' is not one of cached, warm, uncached, lru"),
        (["--model", "bert"], "'bert' is not one of"),
        (["--plot", "bench.pdf"], "does not end in .svg or .png"),
        (["--limit", "-1"], "-1"),
        (["--json", "/dev/null/bench.json"], "cannot be written"),
    ],
)
def test_bad_options_are_refused(options, message):
    outcome = CliRunner().invoke(main, options)
    assert outcome.exit_code == 2
    assert message in outcome.stderr


def test_a_backend_that_does_not_work_is_refused(monkeypatch):
    here = {"environment": {}, "device": "cpu", "backend": "nvfuser", "problem": "there is no CUDA device"}
    monkeypatch.setattr(processes, "call", lambda module, argument: here)
    outcome = CliRunner().invoke(main, ["--backend", "nvfuser"])
    assert outcome.exit_code == 2
    assert "--backend nvfuser does not work here: there is no CUDA device" in outcome.stderr


def run(monkeypatch: Any, answer: Any, modes: Sequence[str], repeat: int = 1) -> Outcome:
    """The outcome for two numbers of layers, each process answered by a function of its spec."""
    monkeypatch.setattr(processes, "call", lambda module, spec, **where: answer(Spec(**spec)))
    plan = runs.Plan(RESIDUAL, [1, 2], modes, repeat, limit=60)
    return runs.run(plan, Outcome(), lambda outcome: None)


def answer(checksum: str, seconds: float = 1.0) -> dict[str, Any]:
    return {
        "checksum": checksum,
        "tensors": {"output": "same", "gradient of w": checksum},
        "compiles": 1,
        "seconds": {"first_step": seconds, "compile": seconds},
    }


def test_a_failed_point_is_recorded_and_the_others_still_run(monkeypatch):
    def fail_once(spec: Spec) -> dict[str, Any]:
        if (spec.layers, spec.mode) == (1, "cached"):
            raise processes.ProcessFailed("RuntimeError: out of ideas", "Traceback")
        return answer("a")

    outcome = run(monkeypatch, fail_once, ["cached", "uncached"])
    assert outcome.failed
    assert [point.get("error") for point in outcome.points] == ["RuntimeError: out of ideas", None, None, None]


def test_modes_that_disagree_are_an_error(monkeypatch):
    outcome = run(monkeypatch, lambda spec: answer(spec.mode if spec.layers == 2 else "a"), ["cached", "uncached"])
    assert outcome.failed
    assert [point.get("error") for point in outcome.points] == [
        *(None, None, None),
        "1 of 2 results differ from those of cached, the first is gradient of w",
    ]


def test_the_median_of_repeated_points_counts(monkeypatch):
    seconds = iter([3.0, 1.0, 2.0, 5.0, 9.0, 7.0])
    outcome = run(monkeypatch, lambda spec: answer("a", next(seconds)), ["cached"], repeat=3)
    assert not outcome.failed
    assert [point["seconds"]["first_step"] for point in outcome.points] == [2.0, 7.0]
    assert [seconds["first_step"] for seconds in outcome.points[1]["repeats"]] == [5.0, 9.0, 7.0]


def test_repetitions_that_disagree_are_an_error(monkeypatch):
    checksums = iter("abaa")
    outcome = run(monkeypatch, lambda spec: answer(next(checksums)), ["cached"], repeat=2)
    assert [point.get("error") for point in outcome.points] == ["its repetitions computed different results", None]
