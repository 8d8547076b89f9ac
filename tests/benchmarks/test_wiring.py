"""Benchmarks that need a GPU, several ranks or minutes: what they ask of processes, and what they make of answers."""

import json
import subprocess
import sys

import pytest
from click import BadParameter
from click.testing import CliRunner

from benchmarks import saved_seconds, summary
from benchmarks.common import processes, runner
from benchmarks.common.environment import Machine
from benchmarks.common.processes import ProcessFailed
from benchmarks.distributed import __main__ as distributed


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run_command(command, call, *options, device="cpu", backend="inductor"):
        monkeypatch.setattr(runner, "inspect_machine", lambda _: Machine({"gpu": None}, device, backend))
        monkeypatch.setattr(processes, "call", call)
        file = tmp_path / "result.json"
        done = CliRunner().invoke(command, [*options, "--json", str(file)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output, json.loads(file.read_text())

    return run_command


@pytest.mark.parametrize(("reported", "code"), [(6.5, 0), (249.0, 1)])
def test_saved_seconds_are_compared_with_those_of_processes_that_find_what_they_should(run, reported, code):
    calls, steps = [], {"alone": 16.0, "fusioncache": 10.0}

    def call(target, spec, *, caches, environment):
        calls.append((spec["way"], caches, environment["TORCHINDUCTOR_CACHE_DIR"]))
        said = {"start": 9.0, "step": steps.get(spec["way"], 0.0), "processor": "avx2"}
        assert spec["processor"] == ("" if spec["way"] == "starts" else "avx2")
        return said | ({"reported": {"saved_seconds": reported}} if spec["way"] == "fusioncache" else {})

    found, _, result = run(saved_seconds.main, call, "--models", "gelu-stack", "--repeat", "1")
    assert found == code and result["start_seconds"] == 9.0 and result["environment"]["options"]["clock"] == "cpu"
    assert [way for way, *_ in calls] == ["starts", "alone", "fusioncache", "fusioncache", "alone", "fusioncache"]
    _, alone, first, second, again, beside = calls
    assert first[1] == second[1] == beside[1] != alone[1]  # the store is full
    assert alone[2] == again[2] == beside[2]  # TorchInductor's caches are full
    assert len({alone[2], first[2], second[2]}) == 3
    for point in result["points"]:
        assert point["seconds"] == {"alone": 16.0, "fusioncache": 10.0, "real": 6.0, "reported": reported}
        assert point["agrees"] is (code == 0)


def test_the_clock_can_be_replaced_before_fusioncache_is_imported():
    code = "import sys, benchmarks.saved_seconds; assert not {'fusioncache', 'thunder'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=processes.ROOT)


def answer_job(bits):
    times = dict.fromkeys(("step_ms", "fastest_ms", "slowest_ms", "first_step"), 2.0)
    more = {"compiles": 4, "bypasses": {}, "bytes_peak": None, "timeline": None, "programs": {}, "further": []}
    return {**times, **more, "losses": [2.0], "loss_bits": [bits], "gradient_bits": bits}


def test_jobs_go_on_behind_a_point_that_fails(run, monkeypatch):
    jobs = []

    def run_job(target, argument, ranks, **where):
        jobs.append([spec["peer"] for spec in argument["specs"]])
        for spec in argument["specs"]:
            if spec["peer"] == "fusioncache-ddp":
                raise ProcessFailed("the job failed", "its log")
            yield [answer_job("others" if spec["peer"].endswith("zero2-thunder-order") else "bits")] * ranks

    monkeypatch.setattr(distributed, "run_job", run_job)
    monkeypatch.setattr(distributed, "choose_variables", lambda environment: {"NCCL_ALGO": "Ring"})
    peers = ["fusioncache-zero3", "fusioncache-ddp", "fusioncache-zero3-thunder-order", "ddp"]
    options = ("--tokens", "8", "--env", "NCCL_P2P_DISABLE=1", "--peers")
    code, output, result = run(distributed.main, None, *options, ",".join(peers))
    assert code == 1 and "NCCL_ALGO=Ring, NCCL_P2P_DISABLE=1: the same bits" in " ".join(output.split())
    assert jobs == [peers[:3], peers[2:3], peers[3:]]
    assert [point["peer"] for point in result["points"] if "error" in point] == ["fusioncache-ddp"]
    pair = "fusioncache-zero2,fusioncache-zero2-thunder-order"
    code, output, _ = run(distributed.main, None, "--tokens", "8", "--peers", pair)
    assert code == 1 and "other bits: error" in output


def test_the_last_process_takes_lengths_that_no_other_one_has_used():
    listed = summary.list_lengths((64, 96, 65, 200), 20, (32, 128))
    assert listed["cold"] == listed["known lengths"] and listed["cold"][:4] == (64, 96, 65, 200)
    assert len(set(listed["cold"])) == len(set(listed["other lengths"])) == 24
    assert not {*listed["cold"]} & {*listed["other lengths"]}
    with pytest.raises(BadParameter, match="fewer than 44 further lengths"):
        summary.list_lengths((64, 96, 65, 200), 20, (32, 64))


def test_series_share_caches_and_a_table_compares_the_ways(run):
    caches, seconds = {"fusioncache": [], "torch.compile": []}, {"fusioncache": 2.0, "torch.compile": 4.0}

    def call(target, spec, **where):
        way, number = spec["way"], len(caches[spec["way"]])
        caches[way].append(where["caches"])
        if way == "torch.compile" and number == 4:
            raise ProcessFailed("it died", "")
        step = {"seconds": seconds[way] + number, "compiles": 1, "traces": 0}
        later = [{"length": 8, "step_ms": 5.0, "error": 0.0}]
        return {"steps": [{**step, "length": each} for each in spec["lengths"]], "later": later}

    options = ("--backend", "eager", "--lengths", "8,12,9,16", "--random", "2", "--repeat", "2", "--between", "8", "40")
    code, output, result = run(summary.main, call, *options, backend="eager")
    assert code == 1 and "torch.compile, series 2, known lengths: it died" in output
    ours, theirs = (set(each) for each in caches.values())
    assert len(ours) == len(theirs) == 2 and not ours & theirs
    ways = [point["process"] for point in result["points"] if point["way"] == "fusioncache"]
    assert ways == [*summary.PROCESSES] * 2
    columns, rows = summary.list_rows(result["points"])
    assert columns == ["<seconds", "fusioncache", "torch.compile", "fusioncache to torch.compile"]
    cells = {row[0]: row[1:] for row in reversed(rows)}
    assert cells["first step, cold"] == ["3.5 (2 to 5)", "5.5 (4 to 7)", "0.64"]
    assert cells["its compiles"] == ["6", "6", "1.00"] and cells["its traces"] == ["0", "0", ""]
