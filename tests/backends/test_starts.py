"""The one-time start of a compiler: done once, timed by itself, and no part of any compile. Clocks are the tests'."""

import importlib
from typing import Any

import pytest
import torch
from store_processes import PersistentEager, Process, X, Y, make_region, make_unary_region

from fusioncache.backends.api import CompilerStarts
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor import backend as inductor_start
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Graph


class Clock:
    """Seconds that only the test lets go by, in place of those of the process."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow(PersistentEager):
    """Takes 12 s to start, half a second to compile and a quarter to load."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def start(self, device: str) -> None:
        self.clock.now += 12.0

    def compile(self, graph: Graph, args: Any) -> Any:
        self.clock.now += 0.5
        return super().compile(graph, args)

    def compile_general(self, general: Any, args: Any, values: Any) -> Any:
        self.clock.now += 0.5
        return lambda args, values: None

    def load(self, artifacts: Any, graph: Graph, args: Any) -> Any:
        self.clock.now += 0.25
        return super().load(artifacts, graph, args)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of a process in which no compiler was started yet."""
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    _restart(monkeypatch)
    return clock


def _restart(monkeypatch: pytest.MonkeyPatch) -> None:
    new = CompilerStarts()
    monkeypatch.setattr("fusioncache.cache.executable.process_starts", lambda: new)


def _seconds(process: Process) -> list[float]:
    return [function.seconds for _, function in process.built]


def test_a_start_is_part_of_no_compile_and_of_no_entry(clock, tmp_path):
    process = Process(tmp_path, Slow(clock))
    process.run(make_region(), X, Y)
    (entry,) = process.cache.store.entries()
    assert (entry.seconds, _seconds(process)) == (0.5, [0.5])
    assert process.ledger.stats().start_seconds == {"torch": 12.0}
    process.run(make_unary_region(), X)  # it was started before
    assert _seconds(process) == [0.5, 0.5] and process.ledger.stats().start_seconds == {"torch": 12.0}
    assert process.ledger.phases().starting == 12.0


def test_a_start_that_fails_is_left_to_the_compile_and_not_tried_again():
    tried: list[str] = []

    class Failing(Eager):
        def start(self, device: str) -> None:
            tried.append(device)
            raise OSError("no compiler")

    starts, told = CompilerStarts(lambda: 1.0), list[tuple[str, float]]()
    for _ in range(2):
        assert starts.start(Failing(), make_unary_region(), lambda *of: told.append(of)) == 0.0
    assert (tried, told) == (["cpu"], [(Failing.title, 0.0)])


@pytest.mark.parametrize(("device", "expected"), [("cpu", "_subtract"), ("cuda", "_transpose")])
def test_starting_torchinductor_compiles_one_function(device, expected, monkeypatch):
    compiled: list[str] = []
    # Before the function is replaced: a module that is imported meanwhile would have the other one for good.
    for name in (*inductor_start.MODULES, "torch._inductor.codegen.triton", "torch._inductor.codegen.cpp"):
        importlib.import_module(name)
    monkeypatch.setattr(
        "fusioncache.backends.inductor.artifacts.compile_graph", lambda function, *_: compiled.append(function.__name__)
    )
    Inductor().start(device)
    assert compiled == [expected]


def test_starting_torchinductor_leaves_random_numbers_and_its_cache_of_graphs_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    random = torch.random.get_rng_state()
    Inductor().start("cuda")
    assert torch.equal(random, torch.random.get_rng_state()) and not (tmp_path / "fxgraph").exists()
