"""The table of what users wait for: which lengths its processes take, and what it makes of their answers."""

import json

import pytest
from click import BadParameter
from click.testing import CliRunner

from benchmarks import summary
from benchmarks.common import processes, runner
from benchmarks.common.environment import Machine
from benchmarks.common.processes import ProcessFailed


def test_the_last_process_takes_lengths_that_no_other_one_has_used():
    listed = summary.list_lengths((64, 96, 65, 200), 20, (32, 128))
    assert listed["cold"] == listed["known lengths"] and listed["cold"][:4] == (64, 96, 65, 200)
    assert len(set(listed["cold"])) == len(set(listed["other lengths"])) == 24
    assert not {*listed["cold"]} & {*listed["other lengths"]}
    with pytest.raises(BadParameter, match="fewer than 44 further lengths"):
        summary.list_lengths((64, 96, 65, 200), 20, (32, 64))


def test_series_share_caches_and_a_table_compares_the_ways(monkeypatch, tmp_path):
    caches, seconds = {}, {"fusioncache": 2.0, "torch.compile": 4.0}

    def call(target, spec, **where):
        way, number = spec["way"], len(caches.setdefault(spec["way"], []))
        caches[way].append(where["caches"])
        if way == "torch.compile" and number == 4:
            raise ProcessFailed("it died", "")
        steps = [
            {"length": each, "seconds": seconds[way] + number, "compiles": 1, "traces": 0} for each in spec["lengths"]
        ]
        return {"steps": steps, "later": [{"length": 8, "step_ms": 5.0, "error": 0.0}]}

    monkeypatch.setattr(runner, "inspect_machine", lambda _: Machine({"gpu": None}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    file = tmp_path / "result.json"
    options = ("--backend", "eager", "--lengths", "8,12,9,16", "--random", "2", "--repeat", "2", "--json", str(file))
    done = CliRunner().invoke(summary.main, [*options, "--between", "8", "40"])
    assert done.exit_code == 1 and "torch.compile, series 2, known lengths: it died" in done.output
    assert [len(set(each)) for each in caches.values()] == [2, 2] and not {*caches["fusioncache"]} & {
        *caches["torch.compile"]
    }
    points = json.loads(file.read_text())["points"]
    assert [point["process"] for point in points if point["way"] == "fusioncache"] == [*summary.PROCESSES] * 2
    columns, rows = summary.list_rows(points)
    assert columns == ["<seconds", "fusioncache", "torch.compile", "fusioncache to torch.compile"]
    cells = {row[0]: row[1:] for row in reversed(rows)}
    assert cells["first step, cold"] == ["3.5 (2 to 5)", "5.5 (4 to 7)", "0.64"]
    assert cells["its compiles"] == ["6", "6", "1.00"] and cells["its traces"] == ["0", "0", ""]
