"""The benchmark of shared training steps: what kernels say of a step, and how jobs go on behind a failure."""

import json
import os
import time
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from benchmarks.common.environment import Machine
from benchmarks.common.kernels import Kernel
from benchmarks.distributed import __main__ as distributed
from benchmarks.distributed import job
from benchmarks.distributed.measure import checksum
from benchmarks.distributed.spec import PointSpec
from benchmarks.distributed.timeline import read_timeline


def test_exposed_is_communication_with_nothing_beside_it():
    kernels = [
        Kernel("gemm", 0, 100),
        Kernel("ncclDevKernel_AllGather", 50, 180),
        Kernel("nvfuser_kernel", 120, 140),
        Kernel("ncclDevKernel_ReduceScatter", 170, 200),
        Kernel("Memcpy DtoD (Device -> Device)", 300, 310),
    ]
    found = read_timeline(kernels, steps=2)
    assert (found.communication, found.computing, found.exposed) == (150 / 2, 130 / 2, 80 / 2)
    assert (found.idle, found.gaps, found.copying, found.kernels) == (100 / 2, 1 / 2, 10 / 2, 5 / 2)


def test_a_checksum_sees_each_bit_and_where_it_is():
    tensor = torch.randn(3, 5, dtype=torch.bfloat16)
    other = tensor.clone()
    assert checksum(tensor) == checksum(other)
    other.view(torch.int16)[2, 4] ^= 1
    assert checksum(tensor) != checksum(other)
    assert checksum(tensor) != checksum(tensor.flip(0))
    assert checksum(None) == (0, 0)


def rank_answer(peer: str, bits: str) -> dict:
    times = {
        "step_ms": 2.0,
        "fastest_ms": 1.0,
        "slowest_ms": 3.0,
        "first_step": 1.0,
        "compiles": 4,
        "compiles_later": 0,
    }
    digests = {"losses": [1.0], "loss_bits": [bits], "gradient_bits": bits, "bypasses": {}}
    return {**times, **digests, "bytes_before": None, "bytes_peak": None, "timeline": None}


@pytest.fixture
def jobs(monkeypatch):
    """The peers of each job. The ranks of DDP die, and ZeRO2 has other bits in Thunder's order."""
    for name in distributed.choose_variables(os.environ):  # Thunder sets one when it shares a model
        monkeypatch.delenv(name)
    found = []

    def run(specs, ranks, folder, deadline, caches):
        found.append([spec.peer for spec in specs])
        for spec in specs:
            if spec.peer == "fusioncache-ddp":
                break
            bits = "others" if spec.peer == "fusioncache-zero2-thunder-order" else "bits"
            yield [rank_answer(spec.peer, bits)] * ranks
        yield "its log\nout of memory"

    monkeypatch.setattr(distributed, "inspect_machine", lambda backend: Machine({"gpu": None}, "cpu", "eager"))
    monkeypatch.setattr(distributed, "require_litgpt", lambda model: None)
    monkeypatch.setattr(job, "start_ranks", run)
    return found


def test_jobs_go_on_behind_a_point_that_fails(jobs, tmp_path):
    peers = "fusioncache-zero3,fusioncache-ddp,fusioncache-zero3-thunder-order,ddp"
    file = tmp_path / "distributed.json"
    outcome = CliRunner().invoke(distributed.main, ["--peers", peers, "--tokens", "8", "--json", str(file)])
    assert outcome.exit_code == 1
    assert jobs == [peers.split(",")[:3], ["fusioncache-zero3-thunder-order"], ["ddp"]]
    points = json.loads(file.read_text())["points"]
    assert [point["peer"] for point in points if "error" in point] == ["fusioncache-ddp"]
    assert "fusioncache-ddp, 8 layers, 8 tokens: out of memory" in outcome.stdout
    assert "fusioncache-zero3-thunder-order, narrow, 8 layers, 8 tokens: the same bits" in outcome.stdout


def test_depths_lengths_and_variables_are_told_apart(jobs, monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    peers = "fusioncache-zero2,fusioncache-zero2-thunder-order"
    file = tmp_path / "distributed.json"
    given = [
        "--peers",
        peers,
        "--tokens",
        "8,16",
        "--layers",
        "2,4",
        "--env",
        "NCCL_P2P_DISABLE=1",
        "--json",
        str(file),
    ]
    outcome = CliRunner().invoke(distributed.main, given)
    assert jobs == [4 * peers.split(",")]
    result = json.loads(file.read_text())
    settings = [f"{layers} layers, {tokens} tokens" for layers in (2, 4) for tokens in (8, 16)]
    expected = [f"{setting}, NCCL_ALGO=Ring, NCCL_P2P_DISABLE=1" for setting in settings]
    assert [one["setting"] for one in result["bits"]] == expected
    assert all(f"narrow Llama, {setting};" in outcome.stdout for setting in expected)


def test_each_peer_has_a_later_job_with_the_same_caches(jobs, monkeypatch, tmp_path):
    folders = []
    run = job.start_ranks
    monkeypatch.setattr(job, "start_ranks", lambda *given: folders.append(given[-1]) or run(*given))
    given = ["--peers", "ddp,fusioncache-zero3", "--tokens", "8", "--jobs", "2", "--json", str(tmp_path / "file.json")]
    assert CliRunner().invoke(distributed.main, given).exit_code == 0
    assert jobs == [["ddp"], ["ddp"], ["fusioncache-zero3"], ["fusioncache-zero3"]]
    assert len(set(folders)) == 1 and None not in folders
    points = json.loads((tmp_path / "file.json").read_text())["points"]
    assert [point["job"] for point in points] == [1, 2, 1, 2]


def test_points_of_later_jobs_find_their_own_caches():
    specs = [PointSpec(peer, "narrow", 1, 8, "eager", "cpu", "float32", 1, 0) for peer in ("ddp", "fusioncache-ddp")]
    assert specs[0].folder != specs[1].folder
    assert specs[0].folder == replace(specs[0], job=2).folder != replace(specs[0], layers=2).folder


def test_hybrid_sharding_takes_four_ranks(jobs):
    outcome = CliRunner().invoke(distributed.main, ["--peers", "fusioncache-hybrid", "--tokens", "8"])
    assert outcome.exit_code == 2 and "takes at least 4 ranks, not 2" in outcome.stderr
    assert not jobs


def test_a_variable_without_a_value_is_refused():
    outcome = CliRunner().invoke(distributed.main, ["--env", "NCCL_P2P_DISABLE"])
    assert outcome.exit_code == 2 and "is not NAME=VALUE" in outcome.stderr


def test_other_bits_than_in_thunders_order_are_an_error(jobs):
    peers = "fusioncache-zero2,fusioncache-zero2-thunder-order"
    outcome = CliRunner().invoke(distributed.main, ["--peers", peers, "--tokens", "8"])
    assert outcome.exit_code == 1 and "other bits: error" in outcome.stdout


def test_when_no_time_is_left_each_point_says_so(jobs):
    spec = PointSpec("ddp", "narrow", 1, 8, "eager", "cpu", "float32", 1, 0)
    points = list(job.run_job([spec, spec], 2, time.monotonic() - 1))
    assert [point["error"] for point in points] == ["no time was left"] * 2
    assert not jobs
