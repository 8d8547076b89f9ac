"""The benchmark of later steps: what several processes of a way say becomes one point."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.common.environment import Machine
from benchmarks.common.processes import ProcessFailed
from benchmarks.step_overhead import __main__ as overhead


@pytest.fixture
def asked(monkeypatch):
    """The ways in the order in which they are measured. Each process is slower than the one before; one fails."""
    found = []

    def call_in_turns(module, arguments, at_once, limit):
        for number, argument in enumerate(arguments, 1):
            ways = [spec["way"] for spec in argument["specs"]]
            found.append(ways)
            if any((way, number) in failing for way in ways):
                yield ProcessFailed("it died", "its log")
            else:
                yield [
                    {
                        "milliseconds": {"step": float(number), "wall": 10.0 * number},
                        "counts": {"torch": number},
                        "kernels": None,
                        "peak_bytes": None,
                    }
                    for _ in ways
                ]

    failing = {("thunder", 2), ("thunder", 4), ("thunder", 6), ("eager", 3)}
    monkeypatch.setattr(overhead, "inspect_machine", lambda backend: Machine({"gpu": None}, "cpu", "eager"))
    monkeypatch.setattr(overhead, "require_litgpt", lambda model: None)
    monkeypatch.setattr(overhead, "call_in_turns", call_in_turns)
    return found


def test_the_medians_of_a_ways_processes_count_and_one_that_fails_does_not(asked, tmp_path):
    file = tmp_path / "steps.json"
    given = ["--layers", "8", "--ways", "eager,thunder", "--processes", "3", "--json", str(file)]
    outcome = CliRunner().invoke(overhead.main, given)
    assert outcome.exit_code == 1, outcome.output
    assert asked == [["eager"], ["thunder"]] * 3
    eager, thunder = json.loads(file.read_text())["points"]
    assert eager["milliseconds"] == {"step": 3.0, "wall": 30.0}  # of the first and the fifth process
    assert [each["step"] for each in eager["processes"]] == [1.0, 5.0]
    assert eager["counts"] == {"torch": 1}
    assert (thunder["error"], thunder["log"]) == ("it died", "its log")


def test_ways_that_take_turns_have_one_process(asked, tmp_path):
    file = tmp_path / "steps.json"
    given = ["--layers", "4,8", "--ways", "torch.compile,fusioncache", "--together", "--json", str(file)]
    assert CliRunner().invoke(overhead.main, given).exit_code == 0
    assert asked == [["torch.compile", "fusioncache"]] * 2
    points = json.loads(file.read_text())["points"]
    assert [(point["layers"], point["way"], point["milliseconds"]["step"]) for point in points] == [
        (4, "torch.compile", 1.0),
        (4, "fusioncache", 1.0),
        (8, "torch.compile", 2.0),
        (8, "fusioncache", 2.0),
    ]


def test_what_changes_all_of_a_process_takes_no_turns(asked):
    outcome = CliRunner().invoke(overhead.main, ["--ways", "fusioncache,own prologue", "--together"])
    assert outcome.exit_code == 2 and "own prologue" in outcome.output and not asked
