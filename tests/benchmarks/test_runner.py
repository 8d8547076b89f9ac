"""The shared runner: outcomes of processes and jobs, the result, and bad options.

Also requests to processes, and the use of their answers, in benchmarks that need a GPU or minutes.
"""

import json
import random
import shlex
from importlib import import_module
from unittest.mock import Mock

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks import summary
from benchmarks.common import processes, runner
from benchmarks.common.environment import Machine
from benchmarks.common.processes import ProcessFailed
from benchmarks.common.runner import Run, pick
from benchmarks.remote import fuzz


@pytest.fixture
def run(tmp_path):
    return Run(Machine({"gpu": None, "commit": "1234"}, "cpu", "eager"), {"layers": 2}, tmp_path / "result.json")


def test_a_result_has_environment_options_points_and_notes(run):
    run.notes.append("something was left out")
    run.more["equal"] = True
    run.add({"way": "one", "seconds": 1.0, "reason": "in /some/where/site-packages/thunder/clang/__init__.py:487"})
    written = json.loads(run.file.read_text())
    assert written["schema"] == 1 and written["equal"] and written["seconds"] >= 0
    assert written["environment"] == {"gpu": None, "commit": "1234", "options": {"layers": 2}}
    # No folder of its machine is named.
    assert written["points"] == [{"way": "one", "seconds": 1.0, "reason": "in thunder/clang/__init__.py:487"}]
    assert written["notes"] == ["something was left out"]


def test_a_process_that_fails_costs_its_own_point_only(run, monkeypatch):
    monkeypatch.setattr(processes, "call", Mock(side_effect=[{"seconds": 2.0}, ProcessFailed("it died", "its log")]))
    assert run.measure({"way": "one"}, "m:f", None) == {"way": "one", "seconds": 2.0}
    assert run.measure({"way": "two"}, "m:f", None) == {"way": "two", "error": "it died", "log": "its log"}


@pytest.mark.parametrize(
    ("points", "code"), [([{"correct": True}], 0), ([{"correct": False}], 1), ([{"error": "x"}], 1)]
)
def test_a_run_ends_with_1_if_a_point_failed_or_is_wrong(run, capsys, points, code):
    run.points = [{"way": "one", **point} for point in points]
    with pytest.raises(SystemExit) as end:
        run.finish("title", {"<way": pick("way"), "ms": pick("later", "step", scale=1e3, digits=1)})
    assert end.value.code == code
    assert "title" in (printed := capsys.readouterr().out) and ("error: one" in printed) is (code == 1)


def test_a_process_that_raises_is_reported_with_its_reason_and_one_is_ended_at_its_limit(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        forks.use(patch)
        with pytest.raises(ProcessFailed, match=r"^TypeError: ") as failure:
            processes.call("benchmarks.starts.worker:measure", {"model": "residual"})
        assert "Traceback" in failure.value.log
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(ProcessFailed, match="ended after 0 s"):
        processes.call(tmp_path / "sleeper.py", {}, limit=0.2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("equality", "training --models llama-9", "'llama-9' is not one of llama-2, llama-3"),
        ("equality", "training --layers 2,deep", "'2,deep' is no list of numbers such as 2,4,real"),
        ("lengths", "--lengths 0,2", "'0,2' is no list of numbers"),
        ("memory", "--json /dev/null/a.json", "cannot be written"),
        ("starts", "--ways jax", "'jax' is not one of eager, thunder"),
        ("starts", "--plot bench.pdf", "does not end in .svg or .png"),
        ("lengths", "--between 20 10", "is no range of lengths"),
        ("distributed", "--peers fusioncache-hybrid", "takes at least 4 ranks, not 2"),
    ],
)
def test_bad_options_are_refused(monkeypatch, name, options, message):
    here = {"environment": {"gpu": None}, "device": "cpu", "backend": "eager", "problem": None}
    monkeypatch.setattr(processes, "call", lambda target, _: here if "environment" in target else pytest.fail())
    module = import_module(f"benchmarks.{name}")
    if hasattr(module, "__path__"):
        module = import_module(f"benchmarks.{name}.__main__")
    outcome = CliRunner().invoke(module.main, shlex.split(options))
    assert outcome.exit_code == 2 and message in outcome.stderr


def test_series_share_caches_and_a_table_compares_the_ways(monkeypatch, tmp_path):
    caches, seconds = {"fusioncache": [], "torch.compile": []}, {"fusioncache": 2.0, "torch.compile": 4.0}

    def call(target, spec, **where):
        way, number = spec["way"], len(caches[spec["way"]])
        caches[way].append(where["caches"])
        if way == "torch.compile" and number == 4:
            raise ProcessFailed("it died", "")
        step = {"seconds": seconds[way] + number, "compiles": 1, "traces": 0}
        later = [{"length": 8, "step_ms": 5.0, "slowest_ms": 6.0, "error": 0.0}]
        return {"steps": [{**step, "length": each} for each in spec["lengths"]], "later": later}

    options = ("--backend", "eager", "--lengths", "8,12,9,16", "--random", "2", "--repeat", "2", "--between", "8", "40")
    monkeypatch.setattr(runner, "inspect_machine", lambda _: Machine({"gpu": None}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    done = CliRunner().invoke(summary.main, [*options, "--json", str(tmp_path / "result.json")])
    assert done.exit_code == 1 and "torch.compile, series 2, known lengths: it died" in done.output
    result = json.loads((tmp_path / "result.json").read_text())
    ours, theirs = (set(each) for each in caches.values())
    assert len(ours) == len(theirs) == 2 and not ours & theirs
    ways = [point["process"] for point in result["points"] if point["way"] == "fusioncache"]
    assert ways == [*summary.PROCESSES] * 2
    columns, rows = summary.list_rows(result["points"])
    assert columns == ["<seconds", "fusioncache", "torch.compile", "fusioncache to torch.compile"]
    cells = {row[0]: row[1:] for row in reversed(rows)}
    assert cells["first step, cold"] == ["3.5 (2 to 5)", "5.5 (4 to 7)", "0.64"]
    assert cells["its compiles"] == ["6", "6", "1.00"] and cells["its traces"] == ["0", "0", ""]


@pytest.mark.parametrize("kind", ["entry, its checksum right", "head of a pack", "index", "key", "pack"])
def test_decoders_refuse_or_decode_changed_files(tmp_path, kind):
    kinds = fuzz.make_inputs(tmp_path)
    content, read = kinds[kind]
    others = b"".join(each for each, _ in kinds.values())
    found = fuzz.fuzz(read, content, others, 100 if kind == "pack" else 1000, 0)
    assert not [what for what in found if what.startswith("crashed")]
    assert found["refused"] > 10
    assert fuzz.change(content, others, random.Random(1)) != content
