"""The outcome, the source and the reason of compilation of each region of a model, in agreement with the counts.

If Thunder makes no region: the reason and advice, once, and in the record of the run.
"""

import linecache
import threading
import warnings
from collections import Counter
from dataclasses import replace

import models
import pytest
import thunder
import torch
from models import Blocks, Residual, compile_with, curve, recompute, step
from store_contents import collect_warnings
from store_processes import PersistentEager, Process, X, Y, make_region
from stored_programs import compile_anew, counts

import fusioncache
from fusioncache.humanize import format_duration
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.events import CompileEvent
from fusioncache.observe.record.observations import ChoiceRecord, RegionRecord
from fusioncache.process.warning import warn_once
from fusioncache.transform import executors
from fusioncache.transform.provenance.misses import Misses
from fusioncache.transform.provenance.source import Compilation

pytestmark = pytest.mark.usefixtures("eager_regions")


def trained(model: torch.nn.Module, cache: fusioncache.Cache) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        step(compile_with(model, cache=cache)[0], model, torch.randn(2, 16))


def test_regions_on_disk_agree_with_the_counts(cache):
    trained(Blocks(2), cache)
    trained(Blocks(2), cache)
    cache.write_record()
    (run,) = RecordReader().runs()
    regions, templates = RecordReader().regions(run.id), RecordReader().templates(run.id)
    assert Counter(region.outcome for region in regions) == {"hit": run.stats.hits, "miss": run.stats.misses}
    assert Counter(region.digest for region in regions) == {each.digest: each.regions for each in templates}
    assert {(region.model, region.trace, region.trace_number) for region in regions} == {
        ("Blocks", trace, number) for trace in ("forward", "backward") for number in (0, 1)
    }
    places = [(region.trace_number, region.trace == "backward", region.position) for region in regions]
    assert places == sorted(places)
    assert all((region.plan, region.reason) == ("inline", None) and region.ops for region in regions)


def test_a_bypassed_region_carries_its_reason(cache, decline_single_op_regions):
    trained(Blocks(2), cache)
    left = [region for region in cache.ledger.history.records(RegionRecord) if region.outcome == "bypass"]
    assert {(region.digest, region.plan, region.reason) for region in left} == {(None, None, "a lonely operation")}
    assert {region.ops for region in left} == {1}
    assert cache.stats().bypasses == {"a lonely operation": len(left)}
    assert {region.source.layer for region in left} == {0, 1}


@pytest.mark.parametrize("make", [lambda: Blocks(3), lambda: Residual(4)], ids=["blocks", "streams"])
def test_a_run_that_loads_has_on_record_what_the_run_that_derived_has(make, tmp_path, monkeypatch):
    """Except that a template could not be compiled, which only the compiling process records."""
    torch.manual_seed(0)
    model, found = make(), []
    x = torch.ones(10, 10 if isinstance(model, Residual) else 16)
    for loaded in (0, 1):
        compiled, transform = compile_anew(model, tmp_path)
        with recompute(), monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            if not loaded:
                patch.setattr("fusioncache.backends.eager.Eager.compile", lambda *_: 1 / 0)
            step(compiled, model, x)
        assert counts(transform) == (loaded, 1 - loaded, {})
        found.append((transform.stats(), transform.cache.ledger))
    (first, derived), (second, again) = found
    for count in ("regions", "templates", "hits", "misses"):
        assert getattr(first, count) == getattr(second, count)
    assert first.hits and first.bypasses and not second.bypasses
    assert [each.arities for each in derived.templates()] == [each.arities for each in again.templates()]
    assert again.history.models == derived.history.models and again.history.traces == 1
    lasting = [replace(region, reason=None) for region in derived.history.records(RegionRecord, 0)]
    assert list(again.history.records(RegionRecord, 0)) == lasting
    choices = [ledger.history.records(ChoiceRecord, 0) for ledger in (derived, again)]
    assert choices[0] == choices[1] and bool(choices[0]) == isinstance(model, Residual)


def test_regions_carry_their_layer_their_module_and_the_users_line(cache):
    trained(Blocks(3), cache)
    regions = cache.ledger.history.records(RegionRecord)
    forward, backward = ([each for each in regions if each.trace == trace] for trace in ("forward", "backward"))
    modules = [f"blocks.{layer}{part}" for layer in range(3) for part in (".norm", "", "")]
    # The last residual add is followed by the head, which is no layer.
    assert [each.source.module for each in forward] == [*modules, "blocks.2"]
    assert [each.source.layer for each in forward] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    layers = [each.source.layer for each in backward]
    assert layers == sorted(layers, reverse=True) and set(layers) == {0, 1, 2}
    norms = [each.source.module for each in backward if "norm" in str(each.source.module)]
    assert norms == ["blocks.2.norm", "blocks.1.norm"]
    # The users' lines come before those of libraries.
    line = forward[1].source.lines[0]
    assert line.file == models.__file__ and linecache.getline(line.file, line.number).strip().startswith("return x +")
    assert all(each.source.lines[0] == line for each in forward[1:])
    (library,) = forward[0].source.lines
    assert library.library and library.file.endswith("normalization.py")
    assert [found.library for found in forward[3].source.lines] == [False, True]
    # Backward regions have the lines of the operations that they are the gradient of.
    assert [line in each.source.lines for each in backward[1:-1]] == [True] * 8


@pytest.mark.parametrize("what", ["current_compilation", "find_sources"])
def test_a_thunder_that_tells_nothing_and_a_trace_that_cannot_be_read_cost_only_the_sources(what, cache, monkeypatch):
    monkeypatch.setattr(f"fusioncache.transform.provenance.trace_notes.{what}", lambda *_: 1 / 0)
    trained(Blocks(1), cache)
    regions = cache.ledger.history.records(RegionRecord)
    assert len(regions) == cache.stats().regions == cache.stats().hits + cache.stats().misses
    assert {region.source.lines for region in regions} == {()}
    if what == "current_compilation":
        assert {(region.model, region.source.module) for region in regions} == {(None, None)}
        assert cache.ledger.phases().tracing is None


class Layers(torch.nn.Module):
    def __init__(self, *factors: float):
        super().__init__()
        self.factors = factors
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = self.linear(x)
            x = torch.tanh(x * factor) + torch.sin(x)
        return x


def read_messages(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def test_each_new_template_is_explained_once_with_the_line_of_the_user(capfd):
    compiled, transform = compile_with(Layers(2.0, 2.0, 3.0, 2.0), cache=fusioncache.Cache(record=False), explain=True)
    with torch.no_grad():
        compiled(torch.randn(4, 8))
    first, at_first, second, at_second = read_messages(capfd)
    assert transform.stats().misses == 2
    known, new = (stats.name for stats in transform.cache.templates())
    assert first == f"fusioncache: {known} is new. No template was known before."
    nearest = f"The nearest is {known}. They differ in a constant, operand 2 of "
    assert second.startswith(f"fusioncache: {new} is new. {nearest}")
    assert second.endswith("(mul): 3.0 here, 2.0 there.")
    for line in (at_first, at_second):
        assert line.startswith(f"  {__file__}:") and line.endswith(": x = torch.tanh(x * factor) + torch.sin(x)")


def test_what_is_loaded_is_one_line_and_not_explained(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda *args, **options: PersistentEager())

    def process(*factors: float) -> tuple[list[str], fusioncache.Stats]:
        compiled, transform = compile_anew(Layers(*factors), tmp_path, explain=True, programs=False)
        for _ in range(2):
            compiled(torch.randn(4, 8)).sum().backward()
        return read_messages(capfd), transform.stats()

    first, cold = process(2.0, 3.0)
    assert sum(" is new. " in line for line in first) == cold.misses == cold.compiles > 3
    assert not any("loaded" in line for line in first)
    second, warm = process(2.0, 3.0)
    took = format_duration(warm.loaded_compile_seconds)
    assert second == [
        f"fusioncache: {warm.misses} templates were loaded from the store (what their compiles took: {took})."
    ]
    assert (warm.loads, warm.compiles) == (cold.compiles, 0)


def test_an_executable_that_the_store_nearly_has_is_explained(tmp_path, capfd):
    for machine in ("here", "here", "there"):  # the second one loads what the first one stored
        assert read_messages(capfd) == []
        process = Process(tmp_path, PersistentEager({"machine": machine}))
        process.run(make_region(), X, Y)
        for executable, function in process.built:
            event = CompileEvent("eager", 0.0, function.loaded, graph=executable.graph, key=function.key)
            Misses(process.cache).note_compile(event)
        for thread in threading.enumerate():
            if thread.name == "fusioncache explain":
                thread.join()
    (line,) = read_messages(capfd)
    assert line.endswith(
        "although the store has the same for something else. They differ in the machine: there here, here there."
    )


INPUT = torch.linspace(-1, 1, 6)
PASS = "pass executors=fusioncache.executors()"
INSTALL = 'pip install "fusioncache[nvfuser]"'


@pytest.fixture(autouse=True)
def nothing_said_yet():
    warn_once.cache_clear()


def compiled(function, cache, fusers):
    return thunder.jit(function, executors=fusers, transforms=[fusioncache.FusionCache(cache=cache)])


def test_it_is_said_once_and_recorded():
    cache = fusioncache.Cache(store=False)
    # Where there is no nvFuser: one of them fuses what losses are made of.
    fusers = [executor for executor in thunder.extend.get_default_executors() if executor.name != "nvfuser"]
    with collect_warnings() as messages:
        for function in (curve, torch.sin, torch.nn.Linear(6, 6)):
            compiled(function, cache, fusers)(INPUT)
    (message,) = messages
    stats = cache.stats()
    assert message == f"fusioncache: {next(iter(stats.bypasses))}"
    assert message.startswith("fusioncache: Thunder fuses nothing") and PASS in message
    assert stats.regions == 0 and sum(stats.bypasses.values()) == 4  # forward three times, backward once
    (run,) = RecordReader().runs()
    assert (run.stats, run.models) == (stats, ("curve", "sin", "Linear"))


def test_a_trace_with_nothing_to_fuse_is_as_it_should_be():
    cache = fusioncache.Cache(store=False, record=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compiled(lambda x: x @ x, cache, fusioncache.executors())(INPUT)
    assert not cache.stats().bypasses


@pytest.mark.parametrize(
    ("cuda", "installed", "problem", "said"),
    [
        (False, True, "there is no CUDA device", ["there is no CUDA device", PASS]),
        (False, False, "there is no module", ["there is no CUDA device", PASS]),
        (True, False, "there is no module", ["nvFuser is not installed", INSTALL, PASS]),
        (True, True, "it does not import with this torch (undefined symbol)", ["undefined symbol", INSTALL, PASS]),
        (True, True, None, ["none of the executors that Thunder was given fuses", PASS]),
    ],
)
def test_the_cause_decides_what_to_do(monkeypatch, cuda, installed, problem, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(executors, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(executors, "problem", lambda name, device: problem)
    reason = executors.explain_unfused(Compilation(fuses=False))
    assert all(part in reason for part in said) and (INSTALL in reason) is (INSTALL in said)


def test_regions_without_the_transform_are_said_once_to_be_compiled_one_by_one(monkeypatch):
    monkeypatch.setattr(executors, "problem", lambda backend, device: "not asked for")  # nor does nvFuser make them
    with collect_warnings() as messages:
        for function in (curve, lambda x: torch.tanh(x) * 3):
            thunder.jit(function, executors=fusioncache.executors())(INPUT)
    advice = "add transforms=[fusioncache.FusionCache()]"
    assert messages == [f"fusioncache: regions are compiled one by one, not shared: {advice}"]


def test_the_check_keeps_no_program_from_being_stored(monkeypatch, tmp_path):
    """Our executor replaces nvFuser."""
    monkeypatch.setattr(executors, "problem", lambda *names: None)
    *others, check = fusioncache.executors()
    assert fusioncache.executors()[-1] is check  # the same object each time, so that lists of executors stay equal
    others = [each for each in others if each.name != "nvfuser"]
    given = [*others, thunder.extend.get_executor("fusioncache"), check]
    for made, loaded in ((1, 0), (0, 1)):
        compiled, transform = compile_anew(curve, tmp_path, jit={"executors": given})
        compiled(INPUT)
        assert counts(transform) == (loaded, made, {})
