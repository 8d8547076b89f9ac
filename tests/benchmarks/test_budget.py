"""The budget: its verdicts, the sources of both sides, and the figures of their processes. No time is asserted."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import forked_processes as forks
import pytest
from click.testing import CliRunner
from repository import ROOT

from benchmarks.budget import __main__ as budget
from benchmarks.budget.spec import BATCH, COLD, FIGURES, LENGTHS, SECOND, ProcessSpec
from benchmarks.budget.verdict import compare
from benchmarks.common import processes, runner
from benchmarks.common.environment import Machine
from benchmarks.common.models import NARROW

SPEC = ProcessSpec("", COLD, 1, NARROW["cpu"], LENGTHS, BATCH, 2, 1, "eager", "cpu", "float32")
SECONDS = {
    COLD: {"cold": 4.0, "second_length": 3.0, "third_length": 2.0, "collector": 0.3},
    SECOND: {"second": 1.0, "later": 0.5, "graphs": 0.25},
}


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.01, 1.02, 1.5), "ok"),
        ((0.8, 0.9, 0.99), "faster"),
        ((1.5, 1.6), "unclear"),
        ((0.9, 1.04, 1.04, 1.05, 1.05, 1.06, 1.06), "slower"),
        ((0.9, 0.95, 1.04, 1.05, 1.05, 1.06, 1.06), "unclear"),
    ],
)
def test_slower_is_what_noise_does_not_explain(ratios, verdict):
    pairs = [(ratio, 1.0) for ratio in ratios]
    assert compare(pairs, 0.03).verdict == compare(pairs[::-1], 0.03).verdict == verdict


def make_package(parent: Path, text: str) -> Path:
    (parent / "fusioncache").mkdir(parents=True, exist_ok=True)
    (parent / "fusioncache" / "__init__.py").write_text(text)
    return parent


def fake_processes(monkeypatch, factors, failing=None):
    """Fakes processes that report ``SECONDS`` times their side's factor; returns a list of the requests to them."""
    asked = []

    def say(spec):
        name, process = Path(spec["folder"]).name, spec["process"]
        asked.append((name, process, spec["variables"].get("FUSIONCACHE_DIR")))
        if (name, process) == failing:
            raise processes.ProcessFailed("it died", "log")
        seconds = {figure: factors[name] * value for figure, value in SECONDS[process].items()}
        return {"seconds": seconds, "import": 0.1, "loss": 6.0, "counts": {"programs_loaded": int(name == "current")}}

    def call(worker, argument, *, caches, root, limit):
        assert worker.name == "worker.py" and caches.is_dir() and (root / "fusioncache").is_dir()
        if "specs" not in argument:
            return say(argument)
        return [said | {"each": [said["seconds"]]} for said in map(say, argument["specs"])]

    monkeypatch.setattr(processes, "call", call)
    machine = Machine({"gpu": None, "commit": "1234"}, "cpu", "eager")
    monkeypatch.setattr(runner, "inspect_machine", lambda _: machine)
    return asked


def invoke(tmp_path, *options):
    base = make_package(tmp_path / "earlier", "earlier = True")
    file = tmp_path / "budget.json"
    done = CliRunner().invoke(budget.main, ["--base", str(base), "--json", str(file), *options])
    return done, json.loads(file.read_text())


def test_sides_take_turns_and_a_slower_one_fails(tmp_path, monkeypatch):
    asked = fake_processes(monkeypatch, {"current": 1.2, "base": 1.0})
    done, written = invoke(tmp_path, "--repeat", "3")
    assert done.exit_code == 1, done.output
    pairs = ["current", "base", "base", "current", "current", "base"]
    assert [side for side, process, _ in asked[1:] if process == COLD] == pairs
    assert [side for side, process, _ in asked[1:] if process == SECOND] == pairs
    assert [point["figure"] for point in written["points"]] == list(FIGURES)
    assert {point["verdict"] for point in written["points"]} == {"slower"}
    assert written["points"][0]["seconds"] == {"current": pytest.approx(4.8), "base": 4.0}
    assert written["sides"]["current"]["commit"] == "1234" and written["sides"]["base"]["commit"] is None
    assert written["notes"] == ["base: no second process loaded a program", "3 of 3 pairs were measured"]


def test_a_process_that_dies_ends_the_run(tmp_path, monkeypatch):
    fake_processes(monkeypatch, {"current": 1.0, "base": 1.0}, failing=("base", SECOND))
    done, written = invoke(tmp_path, "--repeat", "3")
    assert done.exit_code == 1 and "0 of 3 pairs" in done.stdout and "it died" in done.stdout
    assert [point["error"] for point in written["points"]] == ["pair 1, second processes: it died"]


def test_both_processes_measure_all_figures_of_a_cpu_and_refuse_another_package(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    forks.use(monkeypatch)
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    spec = replace(SPEC, folder=str(ROOT))
    cold = processes.call("benchmarks.budget.worker", asdict(spec), caches=tmp_path)
    specs = [asdict(replace(spec, process=SECOND, variables=processes.environment_in(str(tmp_path))))]
    (second,) = processes.call("benchmarks.budget.worker", {"specs": specs}, caches=tmp_path)
    for said, expected in ((cold, set(SECONDS[COLD])), (second, {"second", "later"})):
        assert set(said["seconds"]) == expected
        assert all(value > 0 for figure, value in said["seconds"].items() if figure != "collector")
        assert 0 < said["loss"] < 10 and said["import"] >= 0
    assert len(second["each"]) == 1
    assert [said["counts"]["programs_loaded"] for said in (cold, second)] == [0, 1]
    with pytest.raises(processes.ProcessFailed, match="fusioncache is imported from"):
        processes.call("benchmarks.budget.worker", asdict(replace(SPEC, folder=str(tmp_path))))
