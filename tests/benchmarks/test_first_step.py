"""The benchmark of a first step, run for real with the backend that compiles nothing. No time is asserted."""

from __future__ import annotations

import json

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks.first_step.__main__ import main


def test_first_step_takes_a_step_apart(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    file = tmp_path / "first_step.json"
    options = ("--model", "residual", "--layers", "2", "--backend", "eager", "--json", str(file))
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "remat" in done.stdout and "prologue" in done.stdout
    points = json.loads(file.read_text())["points"]
    assert [(point["layers"], point["tracing"]) for point in points] == [(2, "own"), (2, "fast")]
    for point in points:
        seconds = dict(point["seconds"])
        total = seconds.pop("total")
        assert all(seconds[phase] > 0 for phase in ("interpret", "grad", "claim", "fuse", "fusioncache", "compile"))
        assert sum(seconds.values()) == pytest.approx(total)
