"""Each benchmark that needs no GPU, run for real on small work. No time is asserted."""

import json
import os

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks import first_step, inference, lengths, step_overhead, store
from benchmarks.equality import __main__ as equality
from benchmarks.starts import __main__ as starts
from benchmarks.starts.worker import PARTS

SMALL = ("--layers", "1", "--backend", "eager")


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run_command(command, *options, shortcuts=False, **variables):
        pytest.importorskip("litgpt")
        forks.use(monkeypatch, shortcuts=shortcuts)
        file = tmp_path / "result.json"
        done = CliRunner(env=variables).invoke(command, [*options, "--json", str(file)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        result = json.loads(file.read_text())
        assert result["schema"] == 1 and result["environment"]["versions"]["torch"] and result["seconds"] >= 0
        return result

    return run_command


def test_starts_of_two_processes(run, tmp_path):
    options = ("--models", "residual", "--ways", "thunder,fusioncache", "--steps", "1")
    points = run(starts.main, *SMALL, *options, "--plot", str(tmp_path / "a.svg"))["points"]
    assert [(point["way"], point["process"]) for point in points] == [
        *(("thunder", "cold"), ("fusioncache", "cold"), ("fusioncache", "warm"))
    ]
    plain, first, second = points
    assert [point["counts"]["traces"] for point in points] == [1, 1, 0]
    assert second["counts"]["programs_loaded"] == 1 and first["counts"]["templates"] > 0
    for point in points:
        seconds = point["seconds"]
        assert point["correct"] and sum(seconds.get(part, 0.0) for part in PARTS) == pytest.approx(seconds["total"])
    assert len({point["repeats"][0]["digest"] for point in points}) == 1
    assert plain["later"]["step"] > 0 and plain["distance"] < 1e-4 and "later" not in second
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_phases_of_a_first_step_add_up(run):
    points = run(first_step.main, "--model", "residual", "--layers", "2", "--backend", "eager")["points"]
    assert [(point["layers"], point["tracing"]) for point in points] == [(2, "own"), (2, "fast")]
    for point in points:
        seconds = dict(point["seconds"])
        total = seconds.pop("total")
        after_trace = seconds.pop("after_trace")
        assert seconds.pop("trace") + after_trace == pytest.approx(total)
        assert seconds["longest"] > 0 and seconds.pop("longest") + seconds.pop("over") == pytest.approx(after_trace)
        assert all(seconds[phase] > 0 for phase in ("interpret", "grad", "claim", "fuse", "fusioncache", "compile"))
        assert sum(seconds.values()) == pytest.approx(total)


def test_a_later_step_is_taken_apart(run):
    (point,) = run(step_overhead.main, *SMALL, "--steps", "2", "--ways", "fusioncache")["points"]
    parts = {"prologue", "forward", "backward", "step", "tenth", "fastest", "wall"}
    assert set(point["milliseconds"]) == parts and min(point["milliseconds"].values()) > 0
    assert 0 < point["synchronized"]["median"] <= point["synchronized"]["slowest"]
    assert point["peak_bytes"] is point["kernels"] is None and point["mode"] == "training"


def test_new_lengths_are_timed_and_counted(run):
    options = ("--lengths", "8,12", "--random", "1", "--between", "5", "5", "--later", "1", "--multiples", "1,4")
    point, rounded = run(lengths.main, *SMALL, *options, "--ways", "fusioncache-named")["points"]
    assert [step["length"] for step in point["steps"]] == [8, 12, 5]
    assert [step["length"] for step in rounded["steps"]] == [8, 12, 8]
    assert point["steps"][0]["compiles"] > 0 and point["steps"][2]["compiles"] == 0
    assert all(each["error"] < 1e-4 for each in point["later"])


def test_tokens_are_generated(run):
    options = ("--prompts", "6,9", "--tokens", "10", "--repeat", "1", "--ways", "eager,fusioncache")
    points = run(inference.main, *SMALL, *options)["points"]
    for point in points:
        assert [len(each["tokens"]) for each in point["later"]] == [10, 10] and point["distance"] < 1e-4
        assert point["later_counts"] == {"compiles": 0, "traces": 0}
    assert [(each["compiles"] > 0, each["traces"]) for each in points[1]["prompts"]] == [(True, 2), (True, 1)]


def test_models_are_compared_in_training_and_in_a_second_process(run):
    (point,) = run(equality.main, "training", "--models", "falcon", *SMALL, shortcuts=True)["points"]
    assert (point["model"], point["layers"], point["real_layers"], point["way"]) == ("falcon", 1, 32, "jit")
    assert point["bitwise"] == point["tensors"] > 20 and "error" not in point
    assert point["templates"] == point["compiles"] <= point["regions"] == point["reference_compiles"]
    (point,) = run(equality.main, "programs", "--models", "falcon", *SMALL, shortcuts=True)["points"]
    assert point["tensors"] > 20 and point["differing"] == {"first": [], "second": []} and "error" not in point
    assert point["first"]["programs_made"] == point["second"]["programs_loaded"] == 1


def test_models_are_compared_at_lengths(run):
    options = ("lengths", "--models", "falcon", *SMALL, "--batches", "2", "--lengths", "8,12,9")
    (point,) = run(equality.main, *options, shortcuts=True)["points"]
    first, second, third = point["steps"]
    assert first["compiles"] > 5 and second["generalizations"] == second["compiles"] > 5
    assert (third["compiles"], third["general_hits"]) == (0, second["compiles"])
    assert all(step["bitwise"] == step["tensors"] > 5 for step in point["steps"]) and "error" not in point


def test_traces_are_compared(run):
    (point,) = run(equality.main, "traces", "--models", "falcon", *SMALL, "--kinds", "all")["points"]
    assert (point["compared"], point["differing"], point["pieces"]) == (["all"], {}, 1)
    assert point["traces"] > 8 and point["lines"] > 500 and "error" not in point


def test_a_store_and_the_commands_on_it(run, monkeypatch):
    monkeypatch.setattr(os, "fsync", os.fsync)  # which the benchmark replaces
    monkeypatch.setattr(store, "time_process", lambda arguments, repeat: 0.001 * repeat)
    options = ("--templates", "12", "--lookups", "3", "--ops", "3", "--repeat", "2")
    points = {point.pop("what"): point for point in run(store.main, *options, FUSIONCACHE_DIR=None)["points"]}
    assert points["objects"]["bytes"] > 0 and points["list"]["milliseconds"] > 0
    assert points.keys() >= {f"fusioncache {name}" for name in ("ls", "show ID", "stats", "dir")}
