"""The scaling benchmark, run for real with the backend that compiles nothing, and what it makes of points. No time is
asserted.
"""

import json
from typing import Any

import forked_processes as forks
import pytest
from click.testing import CliRunner
from thunder_versions import VERSION

from benchmarks.common import processes
from benchmarks.scaling.__main__ import main
from benchmarks.scaling.spec import PHASES


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
    assert result["environment"]["versions"]["thunder"] == VERSION
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
    seconds = {"first_step": 1.0, "compile": 1.0}
    said = {"checksum": "a", "tensors": {"output": "a"}, "compiles": 1, "seconds": seconds}
    monkeypatch.setattr(processes, "call", lambda module, *_, **where: here if "environment" in module else said)
    plot = tmp_path / "bench.png"
    options = ["--no-recompute", "--no-grad", "--layers", "1,2", "--modes", "cached", "--limit", "0"]
    done = CliRunner().invoke(main, [*options, "--plot", str(plot)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "cached stopped at 1 layers" in done.stdout and "over the limit of 0 s" in done.stdout
    assert "2 layers" not in done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_backend_that_does_not_work_is_refused(monkeypatch):
    here = {"environment": {}, "device": "cpu", "backend": "nvfuser", "problem": "there is no CUDA device"}
    monkeypatch.setattr(processes, "call", lambda module, argument: here)
    outcome = CliRunner().invoke(main, ["--backend", "nvfuser"])
    assert outcome.exit_code == 2
    assert "--backend nvfuser does not work here: there is no CUDA device" in outcome.stderr
