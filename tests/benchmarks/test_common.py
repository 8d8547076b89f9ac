"""What the benchmarks share: processes, counts of compilations, the recompute of a stream; and all their commands."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import forked_processes as forks
import pytest
from click.testing import CliRunner
from thunder.core import rematerialization
from thunder.extend import get_executor

from benchmarks.common import counting, processes
from benchmarks.common.models import make_model
from benchmarks.common.rematerialization import copy_with_zero_weight, recompute_sums
from benchmarks.common.spec import ModelSpec
from benchmarks.common.thunder_jit import find_fusions, jit
from fusioncache.transform import executor
from fusioncache.transform.executors import NAME

ROOT = Path(__file__).resolve().parents[2]
RESIDUAL = ModelSpec("residual", 3, "eager", "cpu", "float32", grad=False)
SCRIPTS = [path.name for path in (ROOT / "benchmarks").glob("*.py") if path.name != "__init__.py"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_starts_in_any_folder_and_says_what_it_does(name):
    command = [sys.executable, str(ROOT / "benchmarks" / name), "--help"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    assert f"Usage: {name} [OPTIONS]" in done.stdout


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("equality", "--models llama-9", "'llama-9' is not one of llama-2, llama-3"),
        ("equality", "--layers 2,deep", "'2,deep' is no list of positive numbers and real"),
        ("equality", "--layers 0", "'0' is no list of positive numbers and real"),
        ("equality", "--reference lru", "--reference lru is nvFuser's own cache"),
        ("folds", "--sizes 1,x", "'1,x' is no list of positive numbers"),
        ("folds", "--widths 0,2", "'0,2' is no list of positive numbers"),
        ("folds", "--terms ''", "'' is no list of positive numbers"),
        ("folds", "--dtypes float64", "'float64' is not one of bfloat16, float32"),
        ("folds", "--seconds -1", "-1"),
        ("folds", "--json /dev/null/folds.json", "cannot be written"),
        ("memory", "--models llama-2", "'llama-2' is not one of olmo-2, gemma-2"),
        ("memory", "--plans guess", "'guess' is not one of reference, again, auto"),
        ("memory", "--budgets x", "no list of positive numbers"),
        ("memory", "--json /dev/null/a.json", "cannot be written"),
        ("peers", "--peers jax", "'jax' is not one of thunder"),
        ("peers", "--width wide", "'wide' is not one of"),
        ("peers", "--layers 0", "is no list of positive numbers"),
        ("peers", "--steps 1", "1"),
        ("scaling", "--layers 1,x", "'1,x' is no list of positive numbers"),
        ("scaling", "--layers 0,1", "'0,1' is no list of positive numbers"),
        ("scaling", "--modes cached,hot", "'hot' is not one of cached, warm, uncached, lru"),
        ("scaling", "--model bert", "'bert' is not one of"),
        ("scaling", "--plot bench.pdf", "does not end in .svg or .png"),
        ("scaling", "--limit -1", "-1"),
        ("scaling", "--json /dev/null/bench.json", "cannot be written"),
    ],
)
def test_bad_options_are_refused(monkeypatch, name, options, message):
    here = {"environment": {"gpu": None}, "device": "cpu", "backend": "eager", "problem": None}
    monkeypatch.setattr(processes, "call", lambda module, _: here if module.endswith("environment") else pytest.fail())
    outcome = CliRunner().invoke(import_module(f"benchmarks.{name}.__main__").main, shlex.split(options))
    assert outcome.exit_code == 2
    assert message in outcome.stderr


def test_a_process_that_raises_is_reported_with_its_reason(monkeypatch):
    forks.use(monkeypatch)
    with pytest.raises(processes.ProcessFailed, match=r"^TypeError: ") as failure:
        processes.call("benchmarks.scaling.worker", {"model": "residual"})
    assert "Traceback" in failure.value.log


def test_definitions_of_nvfuser_are_counted_once_and_those_of_fusioncache_not(monkeypatch):
    class Definition:
        def execute(self, args: Sequence[int]) -> Sequence[int]:
            return args

    thunders = SimpleNamespace(create_fd=lambda: Definition())
    monkeypatch.setattr(counting, "nvfuser_executor", lambda: thunders)
    counter = counting.count_compiles("nvfuser")
    definitions = [thunders.create_fd() for _ in range(3)]
    assert counter.compiles == 0
    assert [definition.execute([7]) for definition in definitions[:2] * 2] == [[7]] * 4
    assert counter.compiles == 2 and counter.seconds > 0
    names = {"__name__": "fusioncache.backends.nvfuser.definition", "thunders": thunders}
    assert eval("thunders.create_fd()", names).execute([7]) == [7]
    assert counter.compiles == 2


def test_regions_that_the_executor_compiles_by_itself_are_counted_once(monkeypatch):
    monkeypatch.setattr(executor, "best_backend", lambda device: "eager")
    monkeypatch.setattr(get_executor(NAME), "observers", [])
    counter = counting.count_compiles("eager")
    model, example = make_model(RESIDUAL)
    compiled = jit(model, "eager")
    for _ in range(2):
        compiled(example)
    assert counter.compiles == len(find_fusions(compiled)) == 7 and counter.seconds > 0


@pytest.mark.parametrize(("recompute", "expected"), [(True, [1, 2, 3, 4, 5, 6, 7]), (False, [1, 2, 2, 2, 2, 2, 2])])
def test_recompute_gives_region_i_one_more_than_i_inputs(monkeypatch, recompute, expected):
    assert inputs_of_regions(monkeypatch, recompute) == expected


def inputs_of_regions(monkeypatch: pytest.MonkeyPatch, recompute: bool) -> list[int]:
    original = rematerialization.find_cut
    monkeypatch.setattr(executor, "best_backend", lambda device: "eager")
    model, example = make_model(RESIDUAL)
    compiled = jit(model, "eager")
    with recompute_sums(recompute):
        compiled(example)
    assert rematerialization.find_cut is original
    return [len(symbol.args) for symbol in find_fusions(compiled)]


def test_recompute_refuses_a_thunder_that_it_does_not_know():
    def other(weight: float) -> float:
        return weight / 4.0

    with pytest.raises(RuntimeError, match=r"found 0: it was written for lightning-thunder 0\.2\.6"):
        copy_with_zero_weight(other)
