"""A model of which Thunder makes no region: why, and what to do, once, and in the record of the run."""

import warnings

import pytest
import thunder
import torch
from store_contents import collect_warnings
from stored_programs import compile_anew, counts

import fusioncache
from fusioncache.observe.record.database import RecordReader
from fusioncache.process.warning import warn_once
from fusioncache.transform import executors
from fusioncache.transform.provenance.source import Compilation

X = torch.linspace(-1, 1, 6)
PASS = "pass executors=fusioncache.executors()"
INSTALL = 'pip install "fusioncache[nvfuser]"'


@pytest.fixture(autouse=True)
def nothing_said_yet():
    warn_once.cache_clear()


def model(x):
    return torch.tanh(x) * 2


def compiled(function, cache, fusers):
    return thunder.jit(function, executors=fusers, transforms=[fusioncache.FusionCache(cache=cache)])


def test_it_is_said_once_and_recorded():
    cache = fusioncache.Cache(store=False)
    # Where there is no nvFuser: one of them fuses what losses are made of.
    fusers = [executor for executor in thunder.extend.get_default_executors() if executor.name != "nvfuser"]
    with collect_warnings() as messages:
        for function in (model, torch.sin, torch.nn.Linear(6, 6)):
            compiled(function, cache, fusers)(X)
    (message,) = messages
    stats = cache.stats()
    assert message == f"fusioncache: {next(iter(stats.bypasses))}"
    assert message.startswith("fusioncache: Thunder fuses nothing") and PASS in message
    assert stats.regions == 0 and sum(stats.bypasses.values()) == 4  # forward three times, backward once
    cache.write_record()
    assert RecordReader().runs()[0].stats == stats


def test_a_trace_with_nothing_to_fuse_is_as_it_should_be():
    cache = fusioncache.Cache(store=False, record=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compiled(lambda x: x @ x, cache, fusioncache.executors())(X)
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
    reason = executors.why_unfused(Compilation(fuses=False))
    assert all(part in reason for part in said) and (INSTALL in reason) is (INSTALL in said)


@pytest.mark.usefixtures("eager_regions")
def test_regions_without_the_transform_are_said_once_to_be_compiled_one_by_one(monkeypatch):
    monkeypatch.setattr(executors, "problem", lambda backend, device: "not asked for")  # nor does nvFuser make them
    with collect_warnings() as messages:
        for function in (model, lambda x: torch.tanh(x) * 3):
            thunder.jit(function, executors=fusioncache.executors())(X)
    advice = "add transforms=[fusioncache.FusionCache()]"
    assert messages == [f"fusioncache: regions are compiled one by one, not shared: {advice}"]


def test_the_check_keeps_no_program_from_being_stored(monkeypatch, tmp_path):
    """Our executor stands for nvFuser."""
    monkeypatch.setattr(executors, "problem", lambda *names: None)
    *others, check = fusioncache.executors()
    assert fusioncache.executors()[-1] is check  # the same object each time, so that lists of executors stay equal
    others = [each for each in others if each.name != "nvfuser"]
    given = [*others, thunder.extend.get_executor("fusioncache"), check]
    for made, loaded in ((1, 0), (0, 1)):
        compiled, transform = compile_anew(model, tmp_path, jit={"executors": given})
        compiled(X)
        assert counts(transform) == (loaded, made, {})
