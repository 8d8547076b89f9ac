"""The small benchmarks: what a call costs, what a first step takes, how long commands take. No time is asserted."""

import json
import os
import sys
from dataclasses import replace

import forked_processes as forks
import pytest
from click.testing import CliRunner
from repository import ROOT

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.common.kernels import Kernel
from benchmarks.detours import __main__ as detours
from benchmarks.first_step.__main__ import main
from benchmarks.jitter import __main__ as jitter
from benchmarks.jitter.events import Reading
from benchmarks.jitter.worker import summarize
from benchmarks.step_overhead import __main__ as step_overhead
from benchmarks.step_overhead.kernels import OTHERS, list_longest, sort_kernel, sum_kernels
from benchmarks.store import commands


def test_call_overhead_measures_each_way_to_call_a_region(tmp_path):
    file = tmp_path / "calls.json"
    options = ("--backend", "eager", "--inputs", "2,3", "--rounds", "1", "--calls", "2", "--json", str(file))
    command = [sys.executable, "-m", "benchmarks.overhead", *options]
    with (tmp_path / "output").open("wb") as output:
        done = forks.run(command, cwd=ROOT, env=os.environ, stdout=output, stderr=output)
    assert done.returncode == 0, (tmp_path / "output").read_text()
    points = json.loads(file.read_text())["points"]
    assert [point["inputs"] for point in points] == [2, 3]
    assert all(set(point["microseconds"]) == {"execute", "thunder", "fusioncache"} for point in points)


def test_step_overhead_takes_a_later_step_apart(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    forks.use(monkeypatch)
    file = tmp_path / "steps.json"
    options = ("--layers", "1", "--steps", "2", "--backend", "eager", "--ways", "fusioncache", "--json", str(file))
    done = CliRunner().invoke(step_overhead.main, options)
    assert done.exit_code == 0, done.output
    (point,) = json.loads(file.read_text())["points"]
    assert set(point["milliseconds"]) == {"prologue", "forward", "backward", "step", "tenth", "fastest", "wall"}
    assert point["reserved_bytes"] is point["peak_bytes"] is point["kernels"] is None
    assert min(point["milliseconds"].values()) > 0
    assert point["counts"]["python"] > 0
    assert point["counts"]["torch"] > point["counts"]["symbols"] > 0 < point["counts"]["operations"]


def test_step_overhead_takes_a_forward_pass_without_gradients(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    forks.use(monkeypatch)
    file = tmp_path / "steps.json"
    options = ("--layers", "1", "--steps", "2", "--backend", "eager", "--ways", "fusioncache", "--json", str(file))
    done = CliRunner().invoke(step_overhead.main, [*options, "--mode", "inference", "--tokens", "8"])
    assert done.exit_code == 0, done.output
    (point,) = json.loads(file.read_text())["points"]
    assert set(point["milliseconds"]) == {"prologue", "forward", "step", "tenth", "fastest", "wall"}
    assert (point["tokens"], point["mode"], point["width"]) == (8, "inference", "narrow")
    assert point["counts"]["symbols"] > 0


def test_kernels_are_summed_by_who_made_them():
    names = {
        "nvfuser_reduction_f0_c1_r0_g0(Tensor<float>)": "nvFuser",
        "_ZN3nvf30nvfuser_pointwise_f0_c1_r0_g0E": "nvFuser",
        "triton_poi_fused_mul_0": "Triton",
        "nvjet_tst_64x64_64x13_1x2_h_bz_TNT": "products",
        "sm90_xmma_gemm_bf16bf16_bf16f32": "products",
        "void cublasLt::splitKreduce_kernel<32>": "products",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)": "attention",
        "void pytorch_flash::flash_fwd_kernel<>": "attention",
        "Memset (Device)": "copies and fills",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>": OTHERS,
    }
    assert {name: sort_kernel(name) for name in names} == names
    kernels = [Kernel("nvfuser_a", 0.0, 30.0), Kernel("nvfuser_b", 30.0, 40.0), Kernel("Memcpy DtoD", 40.0, 42.0)]
    found = {
        "nvFuser": {"milliseconds": 0.02, "kernels": 1.0},
        "copies and fills": {"milliseconds": 0.001, "kernels": 0.5},
    }
    assert sum_kernels(kernels, 2) == found
    assert [(each["name"], each["milliseconds"], each["kernels"]) for each in list_longest(kernels, 2)] == [
        ("nvfuser_a", 0.015, 0.5),
        ("nvfuser_b", 0.005, 0.5),
        ("Memcpy DtoD", 0.001, 0.5),
    ]


def test_jitter_explains_the_slowest_steps(tmp_path, monkeypatch):
    pytest.importorskip("litgpt")
    forks.use(monkeypatch)
    file = tmp_path / "jitter.json"
    options = ("--layers", "1", "--steps", "20", "--backend", "eager", "--ways", "fusioncache", "--beside", "loader")
    done = CliRunner().invoke(jitter.main, [*options, "--json", str(file)])
    assert done.exit_code == 0, done.output
    (point,) = json.loads(file.read_text())["points"]
    times = point["milliseconds"]
    assert point["steps"] == 20 and 0 < times["median"] <= times["0.99"] <= times["0.999"] == times["slowest"]
    assert sum(point["causes"].values()) == len(point["slow_steps"]) == 1
    assert point["slow_steps"][0]["milliseconds"] == times["slowest"]


QUIET = Reading(
    collections=(0, 0, 0), collecting=0.0, compiles=0, segments=0, faults=(0, 0), switches=(0, 0), running=0
)


@pytest.mark.parametrize(
    ("happened", "cause"),
    [
        ({"compiles": 1}, "compiled or loaded"),
        ({"segments": 2}, "CUDA segments"),
        ({"collections": (9, 1, 0), "collecting": 0.006, "running": 0.011}, "collecting garbage"),
        ({"collections": (1, 0, 0), "collecting": 0.001, "running": 0.011}, "slower at the same work"),
        ({"switches": (0, 3), "running": 0.002}, "another thread ran"),
        ({"switches": (3, 0), "running": 0.002}, "the thread did not run"),
        ({"faults": (4, 0), "running": 0.011}, "page faults from disk"),
        ({"running": 0.011}, "slower at the same work"),
    ],
)
def test_a_slow_step_has_one_cause(happened, cause):
    calm = QUIET, replace(QUIET, running=0.001)
    found = summarize([0.001] * 999 + [0.011], [calm] * 999 + [(QUIET, replace(QUIET, **happened))])
    assert found["causes"] == {cause: 1}
    assert found["milliseconds"]["median"] == 1.0 and found["milliseconds"]["slowest"] == 11.0
    assert found["slower_than_twice"] == 1 and found["slow_steps"][0]["step"] == 999
    assert ("ms not running" in found["slow_steps"][0]["happened"]) is (happened.get("running") != 0.011)


def test_first_step_takes_a_step_apart(tmp_path, monkeypatch):
    forks.use(monkeypatch)
    file = tmp_path / "first_step.json"
    options = ("--model", "residual", "--layers", "2", "--backend", "eager", "--json", str(file))
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "remat" in done.stdout and "prologue" in done.stdout
    points = json.loads(file.read_text())["points"]
    assert [(point["layers"], point["tracing"]) for point in points] == [(2, "own"), (2, "fast")]
    for point in points:
        seconds = dict(point["seconds"])
        total = seconds.pop("total")
        assert seconds.pop("trace") + seconds.pop("after_trace") == pytest.approx(total)
        assert all(seconds[phase] > 0 for phase in ("interpret", "grad", "claim", "fuse", "fusioncache", "compile"))
        assert sum(seconds.values()) == pytest.approx(total)


def test_points_of_a_first_step_take_turns_and_jobs_are_of_the_fast_ones(tmp_path, monkeypatch):
    asked = []

    def call(module, argument, *, environment, root=None):
        model = argument.get("model")
        asked.append((argument["tracing"], argument.get("jobs"), argument.get("start"), root))
        if model["layers"] == 4 and argument["jobs"] == 2:
            raise processes.ProcessFailed("it died", "log")
        return {"interpret": 1.0, "compile": 2.0, "rest": 0.0, "total": 3.0, "trace": 1.0, "after_trace": 2.0}

    monkeypatch.setattr("benchmarks.first_step.__main__.inspect_machine", lambda _: Machine({}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    file = tmp_path / "first_step.json"
    options = ("--layers", "2,4", "--own-layers", "2", "--tracing", "own,fast,torch.compile", "--jobs", "0,2")
    done = CliRunner().invoke(main, [*options, "--start", "hidden,ready", "--repeat", "2", "--json", str(file)])
    assert done.exit_code == 1 and "4 layers, fast: it died" in done.stdout
    fast = [("fast", 0, "hidden", None), ("fast", 2, "hidden", None), ("fast", 2, "ready", None)]
    others = ("own", None, "hidden", None), ("torch.compile", None, "hidden", None)
    assert asked == 2 * [others[0], *fast, others[1], *fast, others[1]]
    points = json.loads(file.read_text())["points"]
    assert len(points) == 9 and sum("error" in point for point in points) == 2
    assert all(len(point["repeats"]) == 2 for point in points if "error" not in point)


def test_an_earlier_state_runs_in_its_own_root(tmp_path, monkeypatch):
    asked = {}

    def call(module, argument, *, environment, root):
        asked.update({"module": module, "root": root, **argument})
        return {"total": 3.0, "trace": 1.0, "after_trace": 2.0}

    monkeypatch.setattr("benchmarks.first_step.__main__.inspect_machine", lambda _: Machine({}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    options = ("--layers", "2", "--tracing", "before")
    assert CliRunner().invoke(main, options).exit_code == 2
    assert CliRunner().invoke(main, [*options, "--before", str(tmp_path)]).exit_code == 0
    assert (asked["module"].name, asked["root"]) == ("earlier.py", tmp_path)
    assert (asked["layers"], asked["mode"], asked["tracing"]) == (2, "cached", "fast")


def test_detours_are_sorted_by_what_they_cost(tmp_path, monkeypatch):
    def call(module, options):
        if not options:
            return [{"group": "a", "name": "one"}, {"group": "b", "name": "two"}]
        seconds = {"all": 2.0, "none": 9.0, "0": 2.5, "1": 3.0}
        return {way: {"seconds": seconds[way], "calls": 10 * seconds[way]} for way in ("all", *options["ways"])}

    monkeypatch.setattr(detours, "inspect_machine", lambda _: Machine({}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    file = tmp_path / "detours.json"
    done = CliRunner().invoke(detours.main, ["--parallel", "2", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = [(point["name"], point["seconds"], point["calls"]) for point in json.loads(file.read_text())["points"]]
    assert found == [("all", 7.0, 70.0), ("two", 1.0, 10.0), ("one", 0.5, 5.0)]


def test_every_figure_is_there(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(commands, "time_process", lambda arguments, repeat: ran.append((arguments, repeat)) or 0.001)
    monkeypatch.setattr(os, "fsync", os.fsync)  # which the benchmark replaces
    path = tmp_path / "result.json"
    options = ["--templates", "12", "--ops", "3", "--repeat", "2", "--json", str(path)]
    result = CliRunner(env={"FUSIONCACHE_DIR": None}).invoke(commands.main, options)
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert set(written) == {"schema", "environment", "milliseconds", "record_bytes"}
    assert written["environment"]["options"] == {"templates": 12, "ops": 3, "repeat": 2}
    assert set(written["milliseconds"]) >= {f"fusioncache {name}" for name in ("ls", "show ID", "stats", "dir")}
    assert set(written["milliseconds"].values()) == {1.0}
    assert (["-m", "fusioncache", "show", "mul_tanh_000005"], 2) in ran  # in the middle of the list


def test_a_process_is_timed():
    assert commands.time_process(["-c", "pass"], 1) > 0
