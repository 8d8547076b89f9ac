"""The scaling benchmark's modes, its later steps and its summary. No time is asserted."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.results import Outcome
from benchmarks.common.steps import measure_steps
from benchmarks.figures import recompute
from benchmarks.scaling import __main__ as command
from benchmarks.scaling import report
from benchmarks.scaling import run as runs
from benchmarks.scaling.report import explain_counts
from benchmarks.scaling.spec import MODES, ON_REQUEST, PHASES, Spec
from benchmarks.scaling.summary import fit_slope, summarize

PLACE = {"backend": "eager", "device": "cpu", "dtype": "float32"}
SPEC = Spec(model="residual", layers=1, mode="", recompute=True, grad=True, size=10, **PLACE)


def run(
    monkeypatch: Any, answer: Callable[[Spec], Any], modes: Sequence[str], spec: Spec = SPEC, **options: Any
) -> Outcome:
    """The outcome for two numbers of layers, each process answered by a function of its spec."""
    monkeypatch.setattr(processes, "call", lambda module, spec, **where: answer(Spec(**spec)))
    plan = runs.Plan(spec, [1, 2], modes, **{"repeat": 1, "limit": 60.0, **options})
    return runs.run(plan, Outcome(), lambda outcome: None)


def answer(checksum: str = "a", **more: Any) -> dict[str, Any]:
    seconds = {"first_step": 4.0, "canonicalize": 1.0}
    return {"checksum": checksum, "tensors": {"output": checksum}, "compiles": 1, "seconds": seconds, **more}


def test_only_what_is_asked_for_runs_without_the_patch():
    found = {mode: SPEC.at(8, mode).recompute for mode in (*MODES, *ON_REQUEST)}
    assert found == {"cached": True, "warm": True, "uncached": True, "lru": True, "own": False, "baseline": False}
    assert not replace(SPEC, recompute=False).at(8, "cached").recompute


@pytest.mark.parametrize(
    ("dtype", "groups"),
    [
        ("float32", ["cached warm uncached lru own baseline"]),
        ("bfloat16", ["cached warm uncached lru", "own baseline"]),
    ],
)
def test_the_same_bits_are_asked_of_the_same_trace_and_in_float32_of_all(dtype, groups):
    specs = {mode: replace(SPEC, dtype=dtype).at(2, mode) for mode in (*MODES, *ON_REQUEST)}
    for one, spec in specs.items():
        alike = [other for other in specs if spec.must_equal(specs[other])]
        assert any(one in group and alike == group.split() for group in groups)


@pytest.mark.parametrize(("dtype", "wrong"), [("float32", ["own", "baseline"]), ("bfloat16", [])])
def test_rounding_between_layers_is_no_error_where_the_dtype_rounds(monkeypatch, dtype, wrong):
    modes = ["cached", "own", "uncached", "baseline"]
    rounded = {mode: "rounded" if mode in ON_REQUEST else "kept" for mode in modes}
    outcome = run(monkeypatch, lambda spec: answer(rounded[spec.mode]), modes, replace(SPEC, dtype=dtype))
    assert [point["mode"] for point in outcome.points if "error" in point] == wrong * 2


def test_own_is_compared_with_the_baseline_in_every_dtype(monkeypatch):
    spec = replace(SPEC, dtype="bfloat16")
    outcome = run(monkeypatch, lambda spec: answer(spec.mode), ["baseline", "own"], spec)
    errors = [point.get("error") for point in outcome.points]
    assert errors == [None, "1 of 1 results differ from those of baseline, the first is output"] * 2


def test_a_failed_point_is_recorded_and_the_others_still_run(monkeypatch):
    def fail_once(spec: Spec) -> dict[str, Any]:
        if (spec.layers, spec.mode) == (1, "cached"):
            raise processes.ProcessFailed("RuntimeError: out of ideas", "Traceback")
        return answer("a")

    outcome = run(monkeypatch, fail_once, ["cached", "uncached"])
    assert outcome.failed
    assert [point.get("error") for point in outcome.points] == ["RuntimeError: out of ideas", None, None, None]


def test_modes_that_disagree_are_an_error(monkeypatch):
    outcome = run(monkeypatch, lambda spec: answer(spec.mode if spec.layers == 2 else "a"), ["cached", "uncached"])
    assert outcome.failed
    assert [point.get("error") for point in outcome.points] == [
        *(None, None, None),
        "1 of 1 results differ from those of cached, the first is output",
    ]


def test_the_median_of_repeated_points_counts(monkeypatch):
    seconds = iter([3.0, 1.0, 2.0, 5.0, 9.0, 7.0])
    outcome = run(
        monkeypatch, lambda spec: answer(seconds={"first_step": next(seconds), "compile": 1.0}), ["cached"], repeat=3
    )
    assert not outcome.failed
    assert [point["seconds"]["first_step"] for point in outcome.points] == [2.0, 7.0]
    assert [found["first_step"] for found in outcome.points[1]["repeats"]] == [5.0, 9.0, 7.0]


def test_repetitions_that_disagree_are_an_error(monkeypatch):
    checksums = iter("abaa")
    outcome = run(monkeypatch, lambda spec: answer(next(checksums)), ["cached"], repeat=2)
    assert [point.get("error") for point in outcome.points] == ["its repetitions computed different results", None]


def test_a_mode_has_a_deepest_point(monkeypatch):
    outcome = run(monkeypatch, lambda spec: answer(), ["cached", "uncached"], until={"uncached": 1})
    found = [(point["layers"], point["mode"], point.get("not_run")) for point in outcome.points]
    both = [(1, "cached", None), (1, "uncached", None)]
    assert found == [*both, (2, "cached", None), (2, "uncached", "not asked for")] and not outcome.notes


def test_points_say_the_share_of_fusioncache_and_medians_of_later_steps(monkeypatch):
    forward = iter([1.0, 5.0, 2.0] * 2)

    def measured(spec: Spec) -> dict[str, Any]:
        steady = {"forward": next(forward), "backward": None, "step": 1.0, "steps": 7, "before": None, "peak": 3}
        return answer(steady={**steady, "compiles": 0})

    points = run(monkeypatch, measured, ["own"], repeat=3).points
    expected = {"forward": 2.0, "backward": None, "step": 1.0, "steps": 7, "before": None, "peak": 3, "compiles": 0}
    assert [point["steady"] for point in points] == [expected] * 2
    assert [point["share"] for point in points] == [0.25] * 2


def test_modes_of_nvfuser_are_skipped_with_the_reason(monkeypatch):
    here = {"environment": {"gpu": None, "cpus": 2}, "device": "cpu", "backend": "eager", "problem": None}
    monkeypatch.setattr(processes, "call", lambda module, backend: here)
    options = ["--modes", "own,baseline,lru", "--layers", "1", "--until", "own=4"]
    monkeypatch.setattr(runs, "run", lambda plan, outcome, save: outcome.note(f"{plan.modes} {plan.until}") or outcome)
    outcome = CliRunner().invoke(command.main, options)
    assert outcome.exit_code == 0, outcome.output
    for mode in ("baseline", "lru"):
        assert f"note: {mode} skipped: it is nvFuser's own cache, and there is no CUDA device" in outcome.stdout
    assert "note: ['own'] {'own': 4}" in outcome.stdout


@pytest.mark.parametrize("value", ["uncached", "uncached=", "uncached=x", "cold=4", "=4"])
def test_no_depth_of_no_mode(value):
    outcome = CliRunner().invoke(command.main, ["--until", value])
    assert outcome.exit_code == 2 and "is no mode and number of layers such as uncached=64" in outcome.stderr


def point(layers: int, mode: str, first_step: float, **more: Any) -> dict[str, Any]:
    seconds = dict.fromkeys(PHASES, 0.5) | {"first_step": first_step}
    counts = {"regions": 4, "templates": 4, "compiles": 6, "share": 0.125}
    return {"layers": layers, "mode": mode, "seconds": seconds, **counts, **more}


def test_a_power_law_has_its_exponent():
    layers = [8, 16, 32, 64]
    assert fit_slope(layers, [3.0 * n for n in layers]) == pytest.approx(1)
    assert fit_slope(layers, [0.1 * n**2 for n in layers]) == pytest.approx(2)
    assert fit_slope([8], [1.0]) is None and fit_slope([], []) is None


def test_the_summary_compares_depths_and_modes():
    steady = {"forward": 1.0, "backward": 4.0, "peak": None}
    points = [
        *(point(n, "own", float(n), steady={**steady, "forward": 3.0}) for n in (1, 8, 16)),
        *(point(n, "baseline", 2.0 * n, steady=steady) for n in (8, 16)),
        point(8, "uncached", 64.0),
        {"layers": 16, "mode": "uncached", "error": "out of ideas"},
    ]
    found = summarize(points)
    assert found["growth"] == {
        "own": {"deepest": [8, 16], "ratio": 2.0, "slope": 1.0},
        "baseline": {"deepest": [8, 16], "ratio": 2.0, "slope": 1.0},
    }
    both = {"first_step": 0.5, "compile": 1.0, "forward": 3.0, "backward": 1.0, "peak": None}
    none = {"forward": None, "backward": None, "peak": None}
    assert found["ratios"] == {
        "own/baseline": [{"layers": 8, **both}, {"layers": 16, **both}],
        "uncached/own": [{"layers": 8, "first_step": 8.0, "compile": 1.0, **none}],
    }
    assert summarize([]) == {"growth": {}, "ratios": {}}


def test_the_summary_and_later_steps_are_printed(capsys):
    steady = {"forward": 1.0, "backward": None, "peak": 2**20, "compiles": 0}
    points = [point(n, mode, 1.0 * n, steady=steady) for n in (8, 16) for mode in ("own", "baseline")]
    report.print_outcome(Outcome(points), "title")
    printed = capsys.readouterr().out
    assert "own: first step at 16 layers is 2.00 times that at 8; as layers to the power of 1.00 from 8 on" in printed
    assert "own/baseline" in printed and "1000.000" in printed and "12.5%" in printed


def test_tables_of_modes():
    steady = {"forward": 1.0, "backward": 1.0, "step": 2.0, "peak": None}
    points = [
        point(8, "own", 1.0, steady=steady),
        point(8, "baseline", 2.0, steady={**steady, "step": 4.0}),
        point(8, "uncached", 12.0),
        point(16, "own", 2.5),
    ]
    rows = recompute.tabulate_modes({"points": points}).splitlines()[2:]
    own, baseline = "| 8 | 6 | 0.50 | 1.00 s | 12.5% |", " 6 | 0.50 | 2.00 s | 0.50 | 0.50 |"
    assert rows[0] == own + baseline + " not run | 12.0 s | 12.00 |"
    assert rows[1] == "| 16 | 6 | 0.50 | 2.50 s | 12.5% |  |  | not run |  |  | not run | not run |  |"


def test_steps_are_warmed_up_cleared_and_not_deterministic():
    calls: list[str] = []

    def forward() -> torch.Tensor:
        calls.append(f"forward {torch.are_deterministic_algorithms_enabled()}")
        return torch.zeros(1)

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = measure_steps(
            forward, lambda _: calls.append("backward"), lambda: calls.append("clear"), device="cpu", steps=2
        )
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert calls == ["clear", "forward False", "backward"] * 4
    assert found["steps"] == 2 and found["step"] > 0 and found["backward"] > 0
    assert found["before"] is None and found["peak"] is None
    forward_only = measure_steps(forward, None, lambda: None, device="cpu", steps=1)
    assert forward_only["backward"] is None and forward_only["forward"] > 0


def test_a_second_process_finds_the_directories_of_the_first_and_no_other(monkeypatch):
    seen: list[tuple[int, str, Any, Any]] = []

    def call(module: str, spec: Any, *, caches: Any, environment: Any) -> dict[str, Any]:
        seen.append((spec["layers"], spec["mode"], caches, dict(environment)))
        return answer()

    monkeypatch.setattr(processes, "call", call)
    plan = runs.Plan(SPEC, [1, 2], ["cached", "warm", "uncached"], repeat=2, limit=60.0)
    runs.run(plan, Outcome(), lambda outcome: None)
    directories = {}
    for number, (layers, mode, caches, environment) in enumerate(seen):
        assert environment == {"FUSIONCACHE_STORE": "1"}
        directories.setdefault((layers, number // 3), {})[mode] = caches
    assert all(found["cached"] == found["warm"] and found["uncached"] is None for found in directories.values())
    assert len({found["cached"] for found in directories.values()}) == 4


@pytest.mark.parametrize(("stops", "until"), [("cached", {}), ("nothing", {"cached": 1})])
def test_without_a_first_process_there_is_no_second(monkeypatch, stops, until):
    def measured(spec: Spec) -> dict[str, Any]:
        seconds = {"first_step": 99.0 if spec.mode == stops else 1.0, "compile": 1.0}
        return answer(seconds=seconds)

    outcome = run(monkeypatch, measured, ["cached", "warm"], until=until)
    reason = "not asked for" if until else "too slow"
    assert [point.get("not_run") for point in outcome.points] == [None, None, reason, reason]


def test_modes_of_every_run_and_the_place_of_the_second_process():
    assert command._modes(None, "inductor") == list(MODES)
    assert "warm" not in command._modes(None, "eager")
    assert command._modes(["warm", "uncached", "cached"], "eager") == ["uncached", "cached", "warm"]
    with pytest.raises(click.UsageError, match="--modes warm needs cached as well"):
        command._modes(["warm", "uncached"], "inductor")


def test_each_point_is_compared_with_uncached_or_with_the_first_there_is(monkeypatch):
    bits = {"cached": "a", "warm": "a", "uncached": "a", "own": "b"}
    outcome = run(monkeypatch, lambda spec: answer(bits[spec.mode]), list(bits), until={"uncached": 1})
    found = {(point["layers"], point["mode"]): point.get("bitwise") for point in outcome.points}
    same = {"to": "uncached", "results": 1, "equal": True, "must_be": True}
    assert found[1, "cached"] == found[1, "warm"] == found[1, "uncached"] == same
    assert found[1, "own"] == {**same, "equal": False}
    assert found[2, "warm"] == {**same, "to": "cached"} and found[2, "uncached"] is None


CHOICES = [{"plan": "inline"}], [{"plan": "carry"}]


def measured_points() -> list[dict[str, Any]]:
    """Two depths: a warm process, modes that did not run, one that failed; nothing timed later, and no GPU."""
    equal = {"to": "uncached", "results": 3, "equal": True, "must_be": True}
    deep = {"to": "cached", "results": 3, "equal": True, "must_be": True}
    return [
        point(8, "cached", 2.0, loads=0, choices=CHOICES[0], bitwise=equal),
        point(8, "warm", 1.0, loads=6, compiles=0, choices=CHOICES[0], bitwise=equal),
        point(8, "uncached", 9.0, templates=None, loads=None, choices=[], bitwise=equal),
        point(8, "own", 3.0, loads=0, choices=[], bitwise={**equal, "equal": False}),
        point(16, "cached", 2.0, compiles=3, loads=0, choices=CHOICES[1], bitwise=deep, unkept={"symbolic sizes": 2}),
        point(16, "warm", 1.0, loads=3, compiles=0, choices=CHOICES[1], bitwise=deep),
        {"layers": 16, "mode": "uncached", "not_run": "too slow"},
        {"layers": 16, "mode": "own", "error": "RuntimeError: out of ideas"},
    ]


def test_every_cell_has_a_value_or_a_reason_and_no_column_is_empty(capsys):
    report.print_outcome(Outcome(measured_points()), "title")
    printed = capsys.readouterr().out
    counts, seconds, ratios = (rows(printed, start) for start in ("title", "seconds", "one mode by another"))
    assert counts["8", "warm"] == ["4", "4", "0", "6", "inline", "yes"]
    assert counts["8", "uncached"] == ["4", "no cache", "6", "no cache", "none", "reference"]
    assert counts["8", "own"][-1] == "NO"
    assert counts["16", "cached"] == ["4", "4", "3", "0", "carry", "reference"]
    assert counts["16", "warm"][-1] == "yes, to cached"
    assert set(counts["16", "uncached"]) == {"too slow"} and set(counts["16", "own"]) == {"failed"}
    assert seconds["8", "warm"][-2:] == ["9.00 x", "0.5"] and seconds["16", "warm"][-2] == "no uncached"
    assert ratios["8", "uncached/cached"] == ["4.50", "1.00"]  # no later steps and no GPU: no columns of these
    assert "note: 16 layers, cached: 2 not kept: symbolic sizes" in printed


def rows(printed: str, title: str) -> dict[tuple[str, str], list[str]]:
    """The cells of a printed table by layers and mode. Two spaces end a cell."""
    lines = printed[printed.index(title) :].splitlines()[2:]
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        cells = re.split(r"\s{2,}", line.strip())
        if line.strip() and not line.startswith(" "):
            break
        if cells[0].isdecimal():
            assert all(cells)
            found[cells[0], cells[1]] = cells[2:]
        elif found and line.strip():
            break
    return found


def test_a_number_of_compiles_that_changes_with_the_depth_is_explain_counts():
    first, *others = explain_counts(measured_points())
    assert first == "compiles of cached, by layers: 6 at 8 (inline), 3 at 16 (carry)"
    assert [line.split(":")[0] for line in others] == ["  inline", "  carry"]
    assert not list(explain_counts([point(layers, "cached", 1.0, choices=CHOICES[0]) for layers in (8, 16)]))
