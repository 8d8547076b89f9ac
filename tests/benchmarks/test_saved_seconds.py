"""The benchmark of saved seconds: the processes that it starts, and what it makes of them. No time is measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.saved_seconds import __main__ as saved_seconds
from benchmarks.saved_seconds.spec import agrees

_STEPS = {"thunder": 30.0, "shortcuts": 16.0, "fusioncache": 10.0}


def _run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reported: float, backend: str = "inductor") -> Any:
    calls: list[tuple[str, Path, str | None]] = []

    def call(module: str, spec: dict[str, Any], *, caches: Path, environment: dict[str, str]) -> dict[str, Any]:
        calls.append((spec["way"], caches, environment.get("TORCHINDUCTOR_CACHE_DIR")))
        said = {"start": 9.0, "step": _STEPS.get(spec["way"], 0.0), "processor": "avx2"}
        assert spec["processor"] == ("" if spec["way"] == "starts" else "avx2")
        return said | ({"reported": {"saved_seconds": reported}} if spec["way"] == "fusioncache" else {})

    device = "cuda" if backend == "nvfuser" else "cpu"
    monkeypatch.setattr(saved_seconds, "inspect_machine", lambda _: Machine({"gpu": None}, device, backend))
    monkeypatch.setattr(processes, "call", call)
    file = tmp_path / "saved.json"
    outcome = CliRunner().invoke(saved_seconds.main, ["--models", "gelu-stack", "--json", str(file)])
    return outcome, calls, json.loads(file.read_text())


def test_each_process_finds_what_it_is_to_find_and_nothing_else(monkeypatch, tmp_path):
    outcome, calls, result = _run(monkeypatch, tmp_path, 6.5)
    assert outcome.exit_code == 0, outcome.output
    ways = ["starts", "thunder", "shortcuts", "fusioncache", "fusioncache", "shortcuts", "fusioncache"]
    assert [way for way, *_ in calls] == ways
    _, thunder, alone, first, second, again, beside = calls
    assert first[1] == second[1] == beside[1] != alone[1]  # the store is full
    assert alone[2] == again[2] == beside[2]  # TorchInductor's caches are full
    assert len({thunder[2], alone[2], first[2], second[2]}) == 4
    assert result["start_seconds"] == 9.0
    for point in result["points"]:
        assert point["seconds"] == {"alone": 16.0, "fusioncache": 10.0, "real": 6.0, "reported": 6.5}
        assert (point["tracing"], point["agrees"]) == (14.0, True)


def test_what_is_reported_and_is_not_so_fails(monkeypatch, tmp_path):
    outcome, _, result = _run(monkeypatch, tmp_path, 249.0)
    assert outcome.exit_code == 1 and not any(point["agrees"] for point in result["points"])


def test_on_a_gpu_there_are_no_caches_of_torchinductors(monkeypatch, tmp_path):
    outcome, calls, result = _run(monkeypatch, tmp_path, 6.0, "nvfuser")
    assert outcome.exit_code == 0 and len(calls) == 5 and len(result["points"]) == 2


@pytest.mark.parametrize(
    ("reported", "real", "expected"),
    [(6.0, 5.0, True), (6.2, 5.0, False), (0.4, 0.0, True), (-0.4, 0.2, False), (-6.0, -5.0, True)],
)
def test_within_a_fifth_or_half_a_second(reported, real, expected):
    assert agrees(reported, real) is expected
