"""The benchmark of what further lengths add. No byte is asserted."""

import json

import forked_processes as forks
from click.testing import CliRunner

from benchmarks.growth.__main__ import main


def test_each_way_says_its_sizes_after_each_number_of_lengths(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    file = tmp_path / "growth.json"
    options = ("--blocks", "1", "--lengths", "2,4", "--thunder", "1", "--json", str(file))
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    points = json.loads(file.read_text())["points"]
    assert [(point["way"], point["lengths"]) for point in points] == [
        ("fusioncache", 2),
        ("fusioncache", 4),
        ("thunder", 1),
    ]
    for point in points:
        assert point["resident"] > 0 and (point["way"] == "thunder" or min(point["record"], point["allocated"]) > 0)
    assert "after so many lengths" in done.output
