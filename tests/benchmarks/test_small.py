"""The small benchmarks: what a call costs, what a first step takes, how long commands take. No time is asserted."""

import json
import os
import subprocess
import sys

import forked_processes as forks
import pytest
from click.testing import CliRunner
from repository import ROOT

from benchmarks.first_step.__main__ import main
from benchmarks.store import commands


def test_call_overhead_measures_each_way_to_call_a_region(tmp_path):
    file = tmp_path / "calls.json"
    options = ("--backend", "eager", "--inputs", "2,3", "--rounds", "1", "--calls", "2", "--json", str(file))
    command = [sys.executable, "-m", "benchmarks.overhead", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points = json.loads(file.read_text())["points"]
    assert [point["inputs"] for point in points] == [2, 3]
    assert all(set(point["microseconds"]) == {"execute", "thunder", "fusioncache"} for point in points)


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


def test_every_figure_is_there(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(commands, "time_process", lambda arguments, repeat: ran.append((arguments, repeat)) or 0.001)
    monkeypatch.setattr(os, "fsync", os.fsync)  # which the benchmark replaces
    path = tmp_path / "result.json"
    options = ["--templates", "12", "--ops", "3", "--repeat", "2", "--json", str(path)]
    result = CliRunner(env={"FUSIONCACHE_DIR": None}).invoke(commands.main, options)
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert set(written) == {"schema", "environment", "milliseconds", "record_bytes"}
    assert written["environment"]["options"] == {"templates": 12, "ops": 3, "repeat": 2}
    assert set(written["milliseconds"]) >= {f"fusioncache {name}" for name in ("ls", "show ID", "stats", "dir")}
    assert set(written["milliseconds"].values()) == {1.0}
    assert (["-m", "fusioncache", "show", "mul_tanh_000005"], 2) in ran  # in the middle of the list


def test_a_process_is_timed():
    assert commands.time_process(["-c", "pass"], 1) > 0
