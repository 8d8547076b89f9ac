"""The benchmarks of warm processes and of many ranks. What they measure has tests of its own."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.common.nvfuser_trace import sum_stages
from benchmarks.common.spec import ModelSpec
from benchmarks.ranks.__main__ import make_point, run_job
from benchmarks.warm_start import __main__ as warm_start
from benchmarks.warm_start.spec import WAYS

EAGER = ModelSpec("residual", 2, "eager", "cpu", "float32", steps=2)


def events(*found: tuple[str, str, int]) -> str:
    line = '{{ "name": "{}", "ph": "{}", "pid": 1, "tid": 2, "ts": {} }},\n'
    return "".join(line.format(*event) for event in found)


def test_the_stages_of_a_trace_add_up_to_its_calls(tmp_path):
    run, segment = "FusionExecutorCache::runFusionWithInputs", "SegmentCandidateFinder::findSegments"
    kernel, compile_, nvrtc = "FusionKernelRuntime::compileKernel", "KernelExecutor::compile", "executor_utils::NVRTC"
    file = tmp_path / "trace.json"
    file.write_text(
        '{\n"traceEvents": [\n{ "name": "TRACE_START", "ph": "I", "pid": 1, "tid": 2, "ts": 0 },\n'
        + events((run, "B", 0), (segment, "B", 1_000_000), (segment, "E", 4_000_000), (kernel, "B", 4_000_000))
        # nvFuser enters some of its functions twice.
        + events((kernel, "B", 4_000_000), (compile_, "B", 5_000_000), (nvrtc, "B", 7_000_000), (nvrtc, "E", 8_500_000))
        + events((compile_, "E", 9_000_000), (kernel, "E", 9_000_000), (kernel, "E", 9_000_000), (run, "E", 10_000_000))
    )
    expected = {"segment": 3.0, "schedule": 1.0, "lower": 2.5, "nvrtc": 1.5, "rest": 2.0}
    assert sum_stages(file) == pytest.approx(expected)


def said(digest: str, kind: str) -> dict[str, object]:
    seconds = {"first_step": 2.0, "compile": 1.5 * (kind == "cold"), "load": 0.1 * (kind == "warm"), "startup": 4.0}
    counts = {"regions": 4, "compiles": 3 * (kind == "cold"), "loads": 3 * (kind == "warm"), "compiles_later": 0}
    return {"seconds": seconds, **counts, "bypasses": {}, "unkept": {}, "digest": digest, "step_ms": 1.0}


@pytest.mark.parametrize(("bits", "code"), [(["a", "a", "a"], 0), (["a", "a", "b"], 1)])
def test_a_warm_process_finds_what_the_cold_one_left_and_must_have_its_bits(monkeypatch, tmp_path, bits, code):
    calls = []

    def call(module, argument, *, caches, environment):
        calls.append((caches, dict(environment)))
        return said(bits[len(calls) - 1], "warm" if len(calls) == 3 else "cold")

    monkeypatch.setattr(warm_start, "inspect_machine", lambda backend: Machine({"gpu": None}, "cpu", "inductor"))
    monkeypatch.setattr(processes, "call", call)
    outcome = CliRunner().invoke(warm_start.main, ["--ways", "nothing,store", "--json", str(tmp_path / "warm.json")])
    assert outcome.exit_code == code
    assert calls[1][0] == calls[2][0] != calls[0][0]
    assert [environment for _, environment in calls] == [
        {"FUSIONCACHE_STORE": "0", "FUSIONCACHE_PROGRAMS": "0"},
        {"FUSIONCACHE_STORE": "1", "FUSIONCACHE_PROGRAMS": "0"},
        {"FUSIONCACHE_STORE": "1", "FUSIONCACHE_PROGRAMS": "0"},
    ]
    points = json.loads((tmp_path / "warm.json").read_text())["points"]
    assert [(point["way"], point["process"]) for point in points] == [
        *(("nothing", "cold"), ("store", "cold"), ("store", "warm"))
    ]
    assert [(point["repeats"][0]["compiles"], point["repeats"][0]["loads"]) for point in points] == [
        *((3, 0), (3, 0), (0, 3))
    ]


def test_a_process_that_fails_is_named(monkeypatch):
    def call(*args, **options):
        raise processes.ProcessFailed("RuntimeError: out of ideas", "its log")

    monkeypatch.setattr(warm_start, "inspect_machine", lambda backend: Machine({}, "cpu", "inductor"))
    monkeypatch.setattr(processes, "call", call)
    outcome = CliRunner().invoke(warm_start.main, [])
    assert outcome.exit_code == 1 and "out of ideas" in outcome.stderr and "its log" in outcome.stderr


def test_only_nvfusers_database_asks_nvfuser_for_it():
    assert {name: way.environment.get("NVFUSER_ENABLE") for name, way in WAYS.items()} == {
        "nothing": None,
        "kernel_db": "kernel_db",
        "store": None,
    }


def test_each_rank_of_a_job_answers():
    found = run_job(EAGER, 2, separate=True)
    assert len(found) == 2 and len({rank["digest"] for rank in found}) == 1
    assert all(rank["compiles"] == found[0]["compiles"] > 0 and rank["compiles_later"] == 0 for rank in found)
    point = make_point(2, "separate", [found])
    assert point["compiles"] == 2 * found[0]["compiles"]
    assert point["first_step"] == max(rank["seconds"]["first_step"] for rank in found)
