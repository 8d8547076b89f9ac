"""The benchmark of what a call costs. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_call_overhead_measures_each_way_to_call_a_region(tmp_path):
    file = tmp_path / "calls.json"
    options = ("--backend", "eager", "--inputs", "2,3", "--rounds", "1", "--calls", "2", "--json", str(file))
    command = [sys.executable, "-m", "benchmarks.overhead", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points = json.loads(file.read_text())["points"]
    assert [point["inputs"] for point in points] == [2, 3]
    assert all(set(point["microseconds"]) == {"execute", "thunder", "fusioncache"} for point in points)
