"""The benchmark of starts on a CPU. No second is asserted."""

import json

import forked_processes as forks
from click.testing import CliRunner

from benchmarks.cpu_start.__main__ import main
from benchmarks.figures.warm import tabulate_cpu_starts


def test_each_way_starts_twice(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    file = tmp_path / "starts.json"
    options = ("--models", "llama-2", "--layers", "1", "--ways", "fusioncache-eager", "--json", str(file))
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    first, second = json.loads(file.read_text())["points"]
    assert (first["start"], second["start"]) == ("first", "second")
    assert first["templates"] == first["compiles"] > 0 and first["step_ms"] > 0
    assert "starts on a CPU" in done.output


def test_the_table_has_a_row_for_each_way():
    point = {"model": "m", "own_s": 2.0, "children_s": 1.0, "step_ms": 1.5}
    points = [
        {**point, "way": way, "start": start, "own_s": own}
        for way, own in (("thunder", 2.0), ("fusioncache", 5.0))
        for start in ("first", "second")
    ]
    failed = [{"model": "m", "way": "torch.compile", "start": start, "error": "no"} for start in ("first", "second")]
    table = tabulate_cpu_starts({"points": points}, {"points": failed})
    assert "| m | fusioncache | 6.00 s | 1.00 s | 2.00 | 6.00 s | 1.50 ms |" in table
    assert "| m | torch.compile | failed |" in table
