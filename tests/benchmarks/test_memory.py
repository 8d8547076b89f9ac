"""The benchmark of the memory that recompute saves. No time is asserted, and no memory of a GPU."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import forked_processes as forks
import pytest
import torch
from click.testing import CliRunner

from benchmarks import zoo
from benchmarks.common import processes
from benchmarks.common.results import Outcome
from benchmarks.figures import recompute as recompute_figures
from benchmarks.memory import report
from benchmarks.memory import run as runs
from benchmarks.memory.__main__ import main
from benchmarks.memory.run import Plan, find_differences, set_against
from benchmarks.memory.spec import MODELS, MemorySpec

SPEC = MemorySpec(
    **{"model": "olmo-2", "plan": "reference", "budget": None, "layers": 2, "sequence": 16, "batch": 1},
    **{"width": "narrow", "head": False, "backend": "eager", "device": "cpu", "dtype": "float32", "steps": 1},
    **{"seconds": 300},
)
PLAN = Plan(SPEC, ["olmo-2"], ["auto"], [64])


def found(digest: str = "a", saved: int = 2**30, step: float = 1.0) -> dict[str, Any]:
    steady = {"forward": step, "backward": step, "step": 2 * step, "steps": 1, "before": 1, "peak": 4 * saved}
    choice = {"stream": "x", "sums": 4, "plan": "segmented"}
    costs = {"segmented": {"moved": 2**20, "alive": 2**21, "kernels": 3}}
    return {
        **{"first_step": 1.0, "saved": saved, "saved_tensors": 3, "weights": 5, "layers": 2},
        **{"regions": 9, "templates": 4, "compiles": 5, "compiles_later": 1, "compile_seconds": 0.5},
        **{"canonicalize_seconds": 0.1, "bypasses": {}, "choices": [{**choice, "costs": costs}], "steady": steady},
        **{"tensors": {"output": "same", "gradient of w": digest}, "not_finite": []},
    }


def run(monkeypatch: Any, answer: Callable[[MemorySpec], Any], plan: Plan = PLAN) -> Outcome:
    monkeypatch.setattr(processes, "call", lambda module, spec: answer(MemorySpec(**spec)))
    return runs.run(plan, lambda outcome: None)


def test_the_reference_comes_first_then_plans_then_budgets():
    plan = replace(PLAN, plans=["inline", "reference", "auto"], budgets=[64, 256])
    names = [spec.name for spec in plan.specs("gemma-2")]
    assert names == ["reference", "inline", "auto", "auto, 64 MiB", "auto, 256 MiB"]
    assert {spec.model for spec in plan.specs("gemma-2")} == {"gemma-2"}


def test_plans_are_options_of_fusioncache():
    assert SPEC.options() == {}
    segmented = replace(SPEC, plan="segmented")
    assert segmented.options() == {"recompute": "residual", "residual": "segmented", "memory_budget": None}
    assert replace(SPEC, plan="auto", budget=3).options()["memory_budget"] == 3 * 2**20


def test_points_are_set_against_the_reference(monkeypatch):
    outcome = run(monkeypatch, lambda spec: found() if spec.plan == "reference" else found(saved=2**29, step=1.5))
    assert not outcome.failed
    reference, auto, budget = outcome.points
    assert reference["against"] == {"saved": 0, "peak": 0, "forward": 1.0, "backward": 1.0, "step": 1.0}
    assert auto["against"] == {"saved": 2**29, "peak": 2**31, "forward": 1.5, "backward": 1.5, "step": 1.5}
    assert [point["bitwise"] for point in outcome.points] == [2, 2, 2]
    assert budget["budget"] == 64


def test_other_bits_are_a_failure_by_name(monkeypatch, capsys):
    outcome = run(monkeypatch, lambda spec: found(spec.plan))
    assert outcome.failed
    assert [point["bitwise"] for point in outcome.points] == [2, 1, 1]
    assert outcome.points[1]["differing"] == ["gradient of w"]
    report.print_outcome(outcome, "title")
    printed = capsys.readouterr().out
    assert "differs: olmo-2, auto: gradient of w" in printed and "1 of 2" in printed
    costs = "olmo-2, 4 sums from x: segmented 1.0 MiB moved, 2.0 alive, 3 kernels"
    assert f"{costs} (reference: segmented, auto: segmented, auto, 64 MiB: segmented)" in printed


def test_differences_are_of_all_names():
    assert find_differences({"a": "1", "c": "3"}, {"a": "1", "b": "2"}) == ["b", "c"]


def test_without_a_gpu_there_is_no_peak():
    ours = found() | {"steady": {**found()["steady"], "peak": None}}
    assert set_against(ours, ours)["peak"] is None


def test_a_point_that_takes_too_long_is_said_to(monkeypatch):
    def answer(spec: MemorySpec) -> dict[str, Any]:
        if spec.plan == "auto":
            raise processes.ProcessFailed("the process was ended by SIGALRM", "log")
        return found()

    outcome = run(monkeypatch, answer)
    assert outcome.failed
    assert [point.get("error") for point in outcome.points] == [None, *["not done within 300 s"] * 2]


def test_without_a_reference_nothing_is_compared(monkeypatch, capsys):
    def answer(spec: MemorySpec) -> dict[str, Any]:
        if spec.plan == "reference":
            raise processes.ProcessFailed("RuntimeError: out of memory", "log")
        return found()

    outcome = run(monkeypatch, answer)
    assert outcome.failed
    assert [point.get("bitwise") for point in outcome.points] == [None, None, None]
    report.print_outcome(outcome, "title")
    assert "error: olmo-2, reference: RuntimeError: out of memory" in capsys.readouterr().out


def test_the_table_of_the_readme(monkeypatch):
    outcome = run(monkeypatch, lambda spec: found() if spec.plan == "reference" else found(saved=2**29, step=1.5))
    outcome.points[2] = {"model": "olmo-2", "name": "inline", "plan": "inline", "error": "not done within 300 s"}
    rows = recompute_figures.tabulate_memory({"points": outcome.points}).splitlines()[2:]
    assert rows == [
        "| olmo-2 | 2 | reference | segmented | 1.00 |  | 4.00 |  | 2000.0 ms |  | 6 | 2 of 2 |",
        "| olmo-2 | 2 | auto | segmented | 0.50 | 0.50 | 2.00 | 2.00 | 3000.0 ms | 1.500 | 6 | 2 of 2 |",
        "| olmo-2 |  | inline | not done within 300 s |  |  |  |  |  |  |  |  |",
    ]


def test_saved_storages_count_once_and_those_of_the_model_not():
    pytest.importorskip("litgpt")
    from benchmarks.memory.worker import Saved

    weight, x = torch.ones(4, 4), torch.ones(8)
    saved = Saved([weight])
    for tensor in (weight, weight[0], x, x[:2], torch.ones(2, dtype=torch.bfloat16)):
        assert saved.pack(tensor) is tensor
    assert (saved.size, saved.count) == (8 * 4 + 2 * 2, 5)


@pytest.mark.parametrize("width", ["narrow", "real"])
def test_no_layer_has_a_sliding_window(width):
    pytest.importorskip("litgpt")
    from benchmarks.memory.work import make_work

    model: Any = make_work(replace(SPEC, model="gemma-2", layers=1, width=width)).workload.model
    assert not any(block.attn.apply_sliding_window_attention for block in model.transformer.h)
    assert model.config.n_embd == (2304 if width == "real" else 64)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("head", [False, True])
def test_every_parameter_gets_a_gradient_that_is_a_number(model, head):
    pytest.importorskip("litgpt")
    from benchmarks.memory.work import make_work

    work = make_work(replace(SPEC, model=model, head=head))
    work.backward(work.forward(work.workload.model))
    gradients = [parameter.grad for parameter in work.workload.model.parameters()]
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)
    assert ("lm_head.weight" in dict(work.workload.model.named_parameters())) == head
    work.clear()
    assert all(parameter.grad is None for parameter in work.workload.model.parameters())


def test_models_of_the_zoo_have_another_sequence_if_asked():
    pytest.importorskip("litgpt")
    workload = zoo.make("llama-2", 1, sequence=24, batch=3, changes={"norm_eps": 0.5})
    assert workload.inputs[0].shape == (3, 24)
    assert workload.model(*workload.inputs).shape[:2] == (3, 24)
    assert workload.model.config.norm_eps == 0.5
    assert zoo.make("llama-2", 1).inputs[0].shape == (2, 8)


def test_a_run_on_a_cpu(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    file = tmp_path / "new" / "memory.json"
    options = ["--models", "olmo-2", "--layers", "2", "--sequence", "16", "--width", "narrow", "--backend", "eager"]
    more = ["--plans", "segmented", "--budgets", "1", "--steps", "1", "--json", str(file)]
    forks.use(monkeypatch)
    done = CliRunner().invoke(main, [*options, *more])
    assert done.exit_code == 0, done.output
    assert "training step, 2 layers, 1 x 16 tokens, bfloat16" in done.stdout
    result = json.loads(file.read_text())
    assert result["schema"] == 1 and result["environment"]["options"]["budgets"] == [1]
    reference, *others = result["points"]
    assert [point["name"] for point in others] == ["segmented", "auto, 1 MiB"]
    assert reference["choices"] == [] and reference["saved"] > 0
    for point in result["points"]:
        assert point["bitwise"] == point["tensors"] == reference["tensors"] > 3
        assert not point["differing"] and not point["not_finite"] and not point["bypasses"]
        assert point["steady"]["peak"] is None and point["compiles_later"] == 0
    saved = {point["name"]: point["saved"] for point in result["points"]}
    # A budget with room for all sums may save nothing, nor may the plan that keeps them.
    assert saved["segmented"] < saved["reference"]
    assert all(size <= saved["reference"] for size in saved.values())
    for point in others:
        assert point["choices"] and point["steady"]["step"] > 0
        assert point["against"]["saved"] == saved["reference"] - point["saved"]
    assert {choice["plan"] for choice in others[1]["choices"]} == {"carry"}
