"""The timing of the command line: what it times, and what it writes down."""

from __future__ import annotations

import json
import os

from click.testing import CliRunner

from benchmarks.store import commands


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
