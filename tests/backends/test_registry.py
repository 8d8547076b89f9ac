"""Backends by name, what is asked of each, and their one-time start, which is no part of any compile."""

from typing import Any

import pytest
import torch
from store_processes import PersistentEager, Process, X, Y, make_region, make_unary_region

from fusioncache.backends.api import (
    BACKENDS,
    Backend,
    CompilerStarts,
    Description,
    backend_class,
    describe,
    make_backend,
)
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor import artifacts
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Graph


@pytest.mark.parametrize("name", BACKENDS)
def test_each_backend_follows_the_contract(name):
    kind = backend_class(name)
    assert issubclass(kind, Backend) and kind.name == name and kind.title
    assert describe(name, {}) == describe("of another version", {"kernels.cu": b""}) == Description()


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("other", {}, ValueError, "unknown backend 'other': use 'auto' or one of 'nvfuser', 'inductor', 'eager'"),
        ("eager", {"fold": "none"}, ValueError, "fold must be one of"),
        ("eager", {"mode": "fast"}, TypeError, "mode"),
    ],
)
def test_another_name_or_option_is_refused(name, options, error, message):
    with pytest.raises(error, match=message):
        make_backend(name, **options)


def test_a_backend_that_persists_nothing_says_so():
    eager = make_backend("eager")
    assert (eager.options(), eager.artifact_environment(), eager.definition(None)) == ({}, None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend eager persists nothing"):
        eager.load({}, None, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("package", ["torch", "thunder"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_another_version_is_another_key(backend, package, monkeypatch):
    before = make_backend(backend).environment()["versions"]
    monkeypatch.setattr(f"{package}.__version__", "0.0.1")
    after = make_backend(backend).environment()["versions"]
    assert set(after.split("\n")) - set(before.split("\n")) == {f"{package} 0.0.1"}


class Slow(PersistentEager):
    """Takes 12 s to start and half a second to compile, on a clock of its own."""

    now = 100.0

    def start(self, device: str) -> None:
        self.now += 12.0

    def compile(self, graph: Graph, args: Any) -> Any:
        self.now += 0.5
        return super().compile(graph, args)


def test_a_start_is_part_of_no_compile_and_of_no_entry(tmp_path, monkeypatch):
    slow, starts = Slow(), CompilerStarts()
    monkeypatch.setattr("time.perf_counter", lambda: slow.now)
    monkeypatch.setattr("fusioncache.cache.executable.process_starts", lambda: starts)
    process = Process(tmp_path, slow)
    process.run(make_region(), X, Y)
    (entry,) = process.cache.store.entries()
    assert entry.seconds == 0.5
    assert process.ledger.stats().start_seconds == {"torch": 12.0}
    process.run(make_unary_region(), X)  # it was started before
    assert [function.seconds for _, function in process.built] == [0.5, 0.5]
    assert process.ledger.stats().start_seconds == {"torch": 12.0}
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


@pytest.mark.parametrize(("device", "name"), [("cpu", "_subtract"), ("cuda", "_transpose")])
def test_starting_torchinductor_compiles_one_function_and_leaves_all_else_alone(device, name, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled, compile_graph = [], artifacts.compile_graph
    monkeypatch.setattr(artifacts, "compile_graph", lambda *given: compiled.append(given) or compile_graph(*given))
    random = torch.random.get_rng_state()
    Inductor().start(device)
    assert [function.__name__ for function, *_ in compiled] == [name]  # one without a kernel where there is a GPU
    assert torch.equal(random, torch.random.get_rng_state()) and not (tmp_path / "fxgraph").exists()
