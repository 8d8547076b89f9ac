"""The benchmark of peers, run for real with the backend that compiles nothing. No time is asserted."""

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import forked_processes as forks
import pytest
import torch
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.common.results import Outcome
from benchmarks.common.resume import read_finished
from benchmarks.common.tensors import digest_all
from benchmarks.peers import __main__ as command
from benchmarks.peers import report
from benchmarks.peers import run as runs
from benchmarks.peers.check import compare, copy_results, judge, keep_wide
from benchmarks.peers.run import Plan, summarize
from benchmarks.peers.spec import PARTS, PEERS, PeerSpec
from benchmarks.peers.work import Work, make_work

RESIDUAL = PeerSpec(
    **{"peer": "eager", "model": "residual", "width": "narrow", "layers": 2, "sequence": 64, "batch": 2},
    **{"size": 10, "inference": False, "backend": "eager", "device": "cpu", "dtype": "float32", "steps": 3},
    **{"warmup": 0},
)


def test_a_run_compares_peers_on_the_same_work(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    file = tmp_path / "peers.json"
    options = ["--model", "residual", "--layers", "1", "--backend", "eager", "--steps", "3", "--warmup", "0"]
    names = ["thunder", "fusioncache", "torch.compile", "eager"]
    done = CliRunner().invoke(command.main, [*options, "--peers", ",".join(names), "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "first step" in done.stdout and "later steps" in done.stdout
    result = json.loads(file.read_text())
    assert result["environment"]["options"]["peers"] == names
    assert result["notes"] == ["1 layers: thunder, fusioncache are bitwise equal"]
    points = {point["peer"]: point for point in result["points"]}
    assert list(points) == names
    for point in points.values():
        check_point(point)
    assert points["thunder"]["units"] == points["thunder"]["regions"] == points["fusioncache"]["regions"] > 0
    assert points["torch.compile"]["graph_breaks"] == 0


def check_point(point: Mapping[str, Any]) -> None:
    assert point["correct"] is True and point["error_of_wrong"] is None and point["notes"] == []
    assert point["host_us"] is None and point["peak_bytes"] is None
    seconds = point["seconds"]
    assert (seconds["warm"] is not None) == PEERS[point["peer"]].keeps_cache
    for part in filter(None, (seconds["cold"], seconds["warm"])):
        assert set(part) == set(PARTS)
        assert part["trace"] + part["compile"] + part["execute"] == pytest.approx(part["total"], abs=1e-4)
    assert point["step_ms"]["q1"] <= point["step_ms"]["median"] <= point["step_ms"]["q3"]


def test_what_inductor_did_is_found_in_the_metrics_of_this_torch(monkeypatch):
    forks.use(monkeypatch)
    spec = replace(RESIDUAL, peer="torch.compile", backend="inductor", layers=1, inference=True, first_step_only=True)
    # TorchInductor keeps its compiled headers, which take the longest, in the directory for temporary files.
    said = processes.call(runs.WORKER, asdict(spec), environment={"TMPDIR": tempfile.gettempdir()})
    assert said["correct"] is True and said["notes"] == []
    assert said["units"] == 1 and said["kernels"] >= 1 and said["graph_breaks"] == 0
    assert said["seconds"]["trace"] > 0 and said["seconds"]["compile"] > 0 and said["seconds"]["execute"] > 0


def test_marked_blocks_are_compiled_as_one_region_and_compute_the_same():
    from benchmarks.peers.torch_compile import TorchCompile

    spec = replace(RESIDUAL, model="Llama-2-7b-hf", sequence=8)
    work = make_work(spec)
    expected = copy_results(work, work.step(work.model))
    work.clear()
    contender = TorchCompile(PEERS["torch.compile-nested"], "eager")
    block = type(work.model.transformer.h[0])
    original = block.forward
    try:
        found = copy_results(work, work.step(contender.compile(work.model)))
    finally:
        block.forward = original
        torch._dynamo.reset()
    assert not compare(found, expected, expected, 1e-6).wrong
    with pytest.raises(ValueError, match="has no blocks"):
        contender.compile(make_work(RESIDUAL).model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_peer_that_computes_the_same_is_correct(dtype):
    verdict = judge(*computed(dtype, lambda tensors: None))
    assert str(verdict) == "correct" and verdict.error == verdict.eager


def computed(dtype: str, spoil: Callable[[dict[str, torch.Tensor]], None]) -> tuple[Work, dict[str, torch.Tensor]]:
    """The work, and what a peer makes of it that differs from eager in one thing."""
    work = make_work(replace(RESIDUAL, dtype=dtype))
    tensors = copy_results(work, work.step(work.model))
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    spoil(tensors)
    return work, tensors


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors["gradient of weights.1"].mul_(1.1),
        lambda tensors: tensors["gradient of weights.1"].neg_(),
        lambda tensors: tensors["gradient of weights.1"].fill_(float("nan")),
        lambda tensors: tensors.pop("gradient of weights.1"),
        lambda tensors: tensors.update({"gradient of weights.1": torch.zeros(3)}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_planted_wrong_peer_is_reported_as_wrong(dtype, spoil):
    verdict = judge(*computed(dtype, spoil))
    assert verdict.wrong == 1
    assert str(verdict).startswith("wrong: gradient of weights.1, ") and "(eager: " in str(verdict)


def test_twice_the_error_of_eager_is_allowed_and_no_more():
    right, eager = {"output": torch.tensor([1.0])}, {"output": torch.tensor([1.01])}
    assert not compare({"output": torch.tensor([1.019])}, eager, right, 1e-6).wrong
    assert compare({"output": torch.tensor([1.021])}, eager, right, 1e-6).wrong
    assert compare({"output": torch.tensor([1.021])}, right, right, 0.02).wrong == 0


def test_the_reference_is_not_narrowed_by_the_model():
    with keep_wide(torch.float64):
        assert torch.ones(1, dtype=torch.float64).float().dtype == torch.float64
    assert torch.ones(1, dtype=torch.float64).float().dtype == torch.float32


def test_a_digest_sees_each_bit_and_each_name():
    tensors = {"output": torch.zeros(2), "gradient": torch.ones(2)}
    others = [{"output": -torch.zeros(2)}, {"gradient": torch.ones(2, dtype=torch.bfloat16)}, {"x": torch.ones(1)}]
    assert len({digest_all(tensors), *(digest_all(tensors | other) for other in others)}) == 4


def run(monkeypatch: Any, answer: Callable[[PeerSpec], Any], names: str, **options: Any) -> Outcome:
    """The outcome for two numbers of layers, each process answered by a function of its spec."""
    monkeypatch.setattr(processes, "call", lambda module, spec, **where: answer(PeerSpec(**spec)))
    plan = Plan(RESIDUAL, names.split(), [1, 2], **{"repeat": 1, "limit": 60, **options})
    return runs.run(plan, lambda outcome: None)


def said(total: float = 1.0, correct: bool = True, digest: str | None = None, **others: Any) -> dict[str, Any]:
    return {
        "seconds": {"trace": 0.0, "compile": 0.0, "execute": total, "total": total},
        "startup": 3.0,
        "step_ms": [1.0, 2.0, 3.0],
        "host_us": None,
        "peak_bytes": None,
        **{"kernels": 1, "units": 1, "regions": None, "graph_breaks": 0},
        **{"correct": correct, "verdict": "correct" if correct else "wrong: output, 0.5 (eager: 0.01)"},
        **{"worst_tensor": "output", "worst_error": 0.5, "worst_error_of_eager": 0.01},
        **{"bitwise_digest": digest, "notes": [], **others},
    }


def test_a_peer_that_fails_or_is_wrong_is_reported_and_the_others_still_run(monkeypatch, capsys):
    def answer(spec: PeerSpec) -> dict[str, Any]:
        if spec.peer == "thunder":
            raise processes.ProcessFailed("RuntimeError: out of ideas", "Traceback")
        return said(correct=not (spec.peer == "torch.compile" and spec.first_step_only and spec.layers == 2))

    outcome = run(monkeypatch, answer, "thunder torch.compile eager")
    assert outcome.failed
    assert [point.get("error") for point in outcome.points] == ["RuntimeError: out of ideas", None, None] * 2
    assert [point["correct"] for point in outcome.points] == [None, True, True, None, False, True]
    assert outcome.points[4]["error_of_wrong"] == "warm: wrong: output, 0.5 (eager: 0.01)"
    report.print_outcome(outcome, "title")
    printed = capsys.readouterr().out
    assert "error: 2 layers, torch.compile: warm: wrong: output, 0.5 (eager: 0.01)" in printed
    assert "error: 1 layers, thunder: RuntimeError: out of ideas" in printed


def test_only_peers_that_keep_a_cache_have_warm_seconds(monkeypatch):
    outcome = run(monkeypatch, lambda spec: said(0.25 if spec.first_step_only else 4.0), "torch.compile thunder")
    (compiled, plain), _ = outcome.points[:2], outcome.points[2:]
    assert compiled["seconds"]["cold"]["total"] == 4.0 and compiled["seconds"]["warm"]["total"] == 0.25
    assert plain["seconds"]["warm"] is None


def test_a_peer_has_its_own_variables_in_both_processes(monkeypatch):
    seen = []
    monkeypatch.setattr(processes, "call", lambda module, spec, **where: seen.append(where["environment"]) or said())
    runs.run(Plan(RESIDUAL, ["thunder-lru-db", "thunder"], [1], 1, 60), lambda outcome: None)
    assert seen == [{"NVFUSER_ENABLE": "kernel_db"}, {"NVFUSER_ENABLE": "kernel_db"}, {}]


def test_a_peer_over_the_limit_stops_and_says_so(monkeypatch):
    outcome = run(monkeypatch, lambda spec: said(99.0 if spec.peer == "thunder" else 1.0), "thunder eager")
    assert [(point["layers"], point["peer"]) for point in outcome.points] == [
        (1, "thunder"),
        (1, "eager"),
        (2, "eager"),
    ]
    assert outcome.notes == ["thunder stopped at 1 layers: 99.0 s is over the limit of 60 s"]


def test_peers_take_turns_and_medians_count(monkeypatch):
    order: list[str] = []
    seconds = iter([1.0, 10.0, 3.0, 30.0, 2.0, 20.0] * 2)

    def answer(spec: PeerSpec) -> dict[str, Any]:
        order.append(spec.peer)
        return said(next(seconds))

    outcome = run(monkeypatch, answer, "thunder eager", repeat=3)
    assert order == ["thunder", "eager"] * 6
    assert [point["seconds"]["cold"]["total"] for point in outcome.points] == [2.0, 20.0] * 2


def test_bits_are_compared_among_the_peers_that_have_a_digest(monkeypatch):
    outcome = run(
        monkeypatch, lambda spec: said(digest=f"{spec.peer if spec.layers == 2 else 'a'}"), "thunder fusioncache"
    )
    assert outcome.notes == [
        "1 layers: thunder, fusioncache are bitwise equal",
        "2 layers: thunder, fusioncache differ bitwise",
    ]


def test_each_turn_is_saved(monkeypatch):
    saved: list[int] = []
    monkeypatch.setattr(processes, "call", lambda module, spec, **where: said())
    plan = Plan(RESIDUAL, ["thunder", "eager"], [1], repeat=1, limit=60)
    runs.run(plan, lambda outcome: saved.append(len(outcome.points)))
    assert saved == [1, 2, 2]


def test_a_run_that_was_cut_goes_on(monkeypatch):
    ran: list[tuple[int, str]] = []
    outcome = run(monkeypatch, lambda spec: said(digest="a"), "thunder fusioncache")
    monkeypatch.setattr(
        processes, "call", lambda module, spec, **where: ran.append((spec["layers"], spec["peer"])) or said(digest="b")
    )
    plan = Plan(RESIDUAL, ["fusioncache", "thunder"], [1, 2], repeat=1, limit=60)
    again = runs.run(plan, lambda outcome: None, outcome.points[:3])
    assert ran == [(2, "fusioncache")] * 2 and len(again.points) == 4
    assert again.points[:3] == outcome.points[:3]
    assert again.notes == ["2 layers: thunder, fusioncache differ bitwise"]


HERE = {"gpu": "H", "commit": "abc"}
OPTIONS = {"layers": (1,), "size": 10, "peers": ["eager"], "limit": 1.0}
MAY_DIFFER = {"peers", "limit"}


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({"commit": "abd"}, {}, "its commit is 'abc' and not 'abd'"),
        ({"gpu": None}, {}, "its gpu is 'H' and not None"),
        ({}, {"size": 11}, "its size is 10 and not 11"),
    ],
)
def test_what_was_measured_on_something_else_is_not_gone_on_with(tmp_path, environment, options, message):
    points = [{"peer": "eager", "layers": 1}, {"peer": "thunder", "layers": 1, "error": "out of ideas"}]
    file = tmp_path / "peers.json"
    assert read_finished(file, HERE, OPTIONS, MAY_DIFFER) == []
    file.write_text(json.dumps({"environment": {**HERE, "options": OPTIONS}, "points": points}))
    assert read_finished(file, HERE, {**OPTIONS, "peers": ["thunder"], "limit": 9.0}, MAY_DIFFER) == points[:1]
    with pytest.raises(click.UsageError, match=message):
        read_finished(file, {**HERE, **environment}, {**OPTIONS, **options}, MAY_DIFFER)
    file.write_text("[]")
    with pytest.raises(click.UsageError, match="no result of this benchmark"):
        read_finished(file, HERE, OPTIONS, MAY_DIFFER)


def test_going_on_needs_a_file(monkeypatch):
    here = {"environment": {"gpu": "H"}, "device": "cpu", "backend": "eager", "problem": None}
    monkeypatch.setattr(processes, "call", lambda module, argument: here)
    outcome = CliRunner().invoke(command.main, ["--model", "residual", "--resume"])
    assert outcome.exit_code == 2 and "--resume needs --json FILE" in outcome.stderr


def test_a_warm_process_says_what_it_compiled_and_loaded(monkeypatch, capsys):
    counts = {"units": 0, "loads": 10}
    outcome = run(monkeypatch, lambda spec: said(**(counts if spec.first_step_only else {})), "fusioncache thunder")
    assert outcome.points[0]["warm"]["loads"] == 10 and outcome.points[1]["warm"] is None
    report.print_outcome(outcome, "title")
    printed = capsys.readouterr().out
    counts = printed[printed.index("what was compiled") : printed.index("later steps")]
    ours, plain = (re.split(r"\s{2,}", line.strip()) for line in counts.splitlines() if line.strip().startswith("1 "))
    assert ours[2:] == ["1", "1", "0", "10", "0", "yes"]
    assert plain[2:] == ["1", "1", "keeps none", "not counted", "0", "yes"]
    assert "host, ms" not in printed  # which a GPU has only


def test_quartiles_are_those_of_the_values():
    assert summarize([1.0, 2.0, 3.0, 4.0, 5.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0}
    assert summarize([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0}


def test_cache_directories_stay_where_they_are_asked_for(tmp_path):
    for _ in range(2):
        environment = processes.environment_in(str(tmp_path))
        Path(environment["TORCHINDUCTOR_CACHE_DIR"], "kept").touch()
    assert Path(environment["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(tmp_path)


def test_peers_that_cannot_take_part_are_left_out_with_a_reason(monkeypatch):
    machine = Machine({"gpu": "H"}, "cpu", "eager")
    options = {"model": "residual", "width": "narrow", "layers": [1], "peers": None, "repeat": 1, "limit": 1.0}
    options |= dict.fromkeys(("sequence", "batch", "dtype"))
    options |= {"size": 10, "inference": False, "steps": 3, "warmup": 0}
    plan, notes = command._plan(machine, **options)
    assert "thunder-lru" not in plan.peers and "torch.compile-nested" not in plan.peers
    assert notes == [
        "thunder-lru skipped: it needs nvFuser",
        "thunder-lru-db skipped: it needs nvFuser",
        "torch.compile-nested skipped: the model has no blocks",
    ]
