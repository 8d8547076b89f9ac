"""The shared runner: what becomes of processes and jobs, the result, and bad options."""

import json
import shlex
from importlib import import_module

import forked_processes as forks
import pytest
from click.testing import CliRunner

from benchmarks.common import job, processes, runner
from benchmarks.common.environment import Machine
from benchmarks.common.processes import ProcessFailed
from benchmarks.common.runner import Run, pick


@pytest.fixture
def run(tmp_path):
    return Run(Machine({"gpu": None, "commit": "1234"}, "cpu", "eager"), {"layers": 2}, tmp_path / "result.json")


def test_a_result_has_environment_options_points_and_notes(run):
    run.notes.append("something was left out")
    run.more["equal"] = True
    run.keep({"way": "one", "seconds": 1.0, "reason": "in /some/where/site-packages/thunder/clang/__init__.py:487"})
    written = json.loads(run.file.read_text())
    assert written["schema"] == 1 and written["equal"] and written["seconds"] >= 0
    assert written["environment"] == {"gpu": None, "commit": "1234", "options": {"layers": 2}}
    # No folder of its machine is named.
    assert written["points"] == [{"way": "one", "seconds": 1.0, "reason": "in thunder/clang/__init__.py:487"}]
    assert written["notes"] == ["something was left out"]


def test_a_process_that_fails_costs_its_own_point_only(run, monkeypatch):
    def call(target, argument, **where):
        if argument == "dies":
            raise ProcessFailed("it died", "its log")
        return {"seconds": 2.0, "limit": where.get("limit")}

    monkeypatch.setattr(processes, "call", call)
    assert run.ask({"way": "one"}, "m:f", "lives") == {"way": "one", "seconds": 2.0, "limit": None}
    assert run.ask({"way": "two"}, "m:f", "dies") == {"way": "two", "error": "it died", "log": "its log"}


def test_no_process_begins_or_goes_on_when_the_time_is_over(run, monkeypatch):
    monkeypatch.setattr(processes, "call", lambda target, argument, limit: {"limit": limit})
    now = iter([100.0, 107.0, 112.0])
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(now))
    late = Run(run.machine, {}, limit=10.0)
    assert late.ask({}, "m:f", None, limit=9.0) == {"limit": 3.0}
    assert late.ask({}, "m:f", None) == {"error": "not run: there was no time left"}


@pytest.mark.parametrize(
    ("points", "code"), [([{"correct": True}], 0), ([{"correct": False}], 1), ([{"error": "x"}], 1)]
)
def test_a_run_ends_with_1_if_a_point_failed_or_is_wrong(run, capsys, points, code):
    run.points = [{"way": "one", **point} for point in points]
    with pytest.raises(SystemExit) as end:
        run.finish("title", {"<way": pick("way"), "ms": pick("later", "step", scale=1e3, digits=1)})
    assert end.value.code == code
    assert "title" in (printed := capsys.readouterr().out) and ("error: one" in printed) is (code == 1)


def test_a_process_that_raises_is_reported_with_its_reason(monkeypatch):
    forks.use(monkeypatch)
    with pytest.raises(ProcessFailed, match=r"^TypeError: ") as failure:
        processes.call("benchmarks.starts.worker:measure", {"model": "residual"})
    assert "Traceback" in failure.value.log


def test_a_process_is_ended_at_its_limit(tmp_path):
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(ProcessFailed, match="ended after 0 s"):
        processes.call(tmp_path / "sleeper.py", {}, limit=0.2)


def test_answers_of_a_job_count_when_all_ranks_have_given_them(tmp_path):
    (tmp_path / "0.jsonl").write_text('{"loss": 1}\n{"loss": 2}\n')
    (tmp_path / "1.jsonl").write_text('{"loss": 3}\n{"lo')
    assert job.read_answers(tmp_path, 2, 0) == [[{"loss": 1}, {"loss": 3}]]
    assert job.read_answers(tmp_path, 2, 1) == job.read_answers(tmp_path, 3, 0) == []


JOB = """
import torch
import torch.distributed as distributed

def answer(argument, rank):
    total = torch.tensor([rank + 1])
    distributed.all_reduce(total)
    yield {"rank": rank, "total": int(total)}
    if argument["fails"]:
        raise ValueError("out of ideas")
    yield "the end"
"""


def test_ranks_of_a_job_answer_as_they_go_on(tmp_path):
    (tmp_path / "some_job.py").write_text(JOB)
    where = {"environment": {"PYTHONPATH": f"{processes.ROOT}:{tmp_path}"}}
    found = list(job.run_job("some_job:answer", {"device": "cpu", "fails": False}, 2, **where))
    assert found == [[{"rank": 0, "total": 3}, {"rank": 1, "total": 3}], ["the end", "the end"]]
    failing = job.run_job("some_job:answer", {"device": "cpu", "fails": True}, 1, **where)
    assert next(failing) == [{"rank": 0, "total": 1}]
    with pytest.raises(ProcessFailed) as failure:
        next(failing)
    assert "out of ideas" in failure.value.log


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
