"""Explanations in place: of templates that are new, and of what the store nearly had."""

import threading

import pytest
import torch
from models import compile_with
from store_processes import PersistentEager, Process, X, Y, make_region
from stored_programs import compile_anew

import fusioncache
from fusioncache.humanize import format_duration
from fusioncache.observe.record.events import CompileEvent
from fusioncache.transform.provenance.misses import Misses


class Layers(torch.nn.Module):
    """Layers that are equal but for a constant."""

    def __init__(self, *factors: float):
        super().__init__()
        self.factors = factors
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = self.linear(x)
            x = torch.tanh(x * factor) + torch.sin(x)
        return x


LINE = "x = torch.tanh(x * factor) + torch.sin(x)"


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def test_each_new_template_is_explained_once_with_the_line_of_the_user(capfd):
    compiled, transform = compile_with(Layers(2.0, 2.0, 3.0, 2.0), cache=fusioncache.Cache(record=False), explain=True)
    with torch.no_grad():
        compiled(torch.randn(4, 8))
    first, at_first, second, at_second = said(capfd)
    assert transform.stats().misses == 2
    known, new = (stats.name for stats in transform.cache.templates())
    assert first == f"fusioncache: {known} is new. No template was known before."
    assert second.startswith(f"fusioncache: {new} is new. The nearest is {known}. They differ in a constant, the 2nd ")
    assert second.endswith("(mul): 3.0 here, 2.0 there.")
    for line in (at_first, at_second):
        assert line.startswith(f"  {__file__}:") and line.endswith(f": {LINE}")


def test_what_is_loaded_is_one_line_and_not_explained(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda *args, **options: PersistentEager())

    def process(*factors: float) -> tuple[list[str], fusioncache.Stats]:
        compiled, transform = compile_anew(Layers(*factors), tmp_path, explain=True, programs=False)
        for _ in range(2):
            compiled(torch.randn(4, 8)).sum().backward()
        return said(capfd), transform.stats()

    first, cold = process(2.0, 3.0)
    assert sum(" is new. " in line for line in first) == cold.misses == cold.compiles > 3
    assert not any("loaded" in line for line in first)
    second, warm = process(2.0, 3.0)
    took = format_duration(warm.loaded_compile_seconds)
    assert second == [
        f"fusioncache: {warm.misses} templates were loaded from the store (what their compiles took: {took})."
    ]
    assert (warm.loads, warm.compiles) == (cold.compiles, 0)
    third, changed = process(2.0, 4.0)
    assert sum(" is new. " in line for line in third) == changed.compiles > 0
    loaded = changed.misses - changed.compiles
    assert third[-1].startswith(f"fusioncache: {loaded} templates were loaded from the store ")


def built(directory, backend: PersistentEager, capfd) -> list[str]:
    """What is said while a process with this backend runs the region."""
    process = Process(directory, backend)
    process.run(make_region(), X, Y)
    for executable, function in process.built:
        event = CompileEvent("eager", 0.0, function.loaded, graph=executable.graph, key=function.key)
        Misses(process.cache).note_compile(event)
    for thread in threading.enumerate():
        if thread.name == "fusioncache explain":
            thread.join()
    return said(capfd)


def test_an_executable_that_the_store_nearly_has_is_explained(tmp_path, capfd):
    assert built(tmp_path, PersistentEager(), capfd) == []
    assert built(tmp_path, PersistentEager(), capfd) == []  # loaded
    (line,) = built(tmp_path, PersistentEager({"machine": "there"}), capfd)
    assert line.endswith(
        "although the store has the same for something else. They differ in the machine: there here, here there."
    )
