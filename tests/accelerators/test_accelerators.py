"""Each accelerator can be switched off alone: everything else goes on, and no bit changes."""

import pytest
import thunder
import torch
from compared_models import are_equal
from compared_models import train as take_step
from models import Blocks
from stored_programs import compile_anew

import fusioncache
from fusioncache.accelerators.registry import SWITCHES, find_unwanted
from fusioncache.accelerators.steps.lean_steps import LeanSteps
from fusioncache.process.settings import ACCELERATORS
from fusioncache.thunder_adapter import capabilities


def train(directory, accelerators):
    """Takes steps of three lengths as two processes would; returns all results, and the last transform."""
    torch.manual_seed(0)
    model = Blocks(2)
    results = []
    for _ in range(2):
        executors = [each for each in fusioncache.executors() if each.name != "nvfuser"]
        jit = {"executors": [*executors, thunder.get_executor("fusioncache")]}
        compiled, transform = compile_anew(model, directory, jit=jit, accelerators=accelerators)
        for length in (3, 5, 7):
            results += take_step(compiled, torch.linspace(-1, 1, 16 * length).reshape(length, 16))
    return results, transform


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return train(tmp_path_factory.mktemp("all"), None)


IDLE = ["graphs", "schedule", "residual", "precompile"]
"""Accelerators that have no work in this test: they are off together with another one."""
OFF = [["programs"], ["sizes"], ["tracing"], ["lean steps", *IDLE], list(SWITCHES)]


@pytest.mark.parametrize("off", OFF, ids=", ".join)
def test_everything_else_works_without(off, expected, tmp_path):
    results, transform = train(tmp_path, [name for name in SWITCHES if name not in off])
    assert are_equal(results, expected[0])
    stats, usual = transform.stats(), expected[1].stats()
    assert usual.programs_loaded and usual.hits
    assert stats.templates == usual.templates or "sizes" in off
    assert bool(stats.programs_loaded) is {"programs", "tracing"}.isdisjoint(off)
    assert isinstance(transform.lean, LeanSteps) is ("lean steps" not in off)


def test_what_is_not_asked_for_is_off_whatever_its_own_option_says(tmp_path):
    cache = fusioncache.Cache(record=False, store=tmp_path)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", programs=True, graphs=True, accelerators=[])
    assert transform.graphs is None and transform.program_keeper is None


def test_the_environment_is_asked_where_the_option_says_nothing(monkeypatch):
    assert set(capabilities.ACCELERATORS) <= SWITCHES.keys()
    assert find_unwanted(None) == frozenset()
    monkeypatch.setenv(ACCELERATORS.name, "programs, lean steps")
    assert find_unwanted(None) == SWITCHES.keys() - {"programs", "lean steps"}
    assert find_unwanted(["graphs"]) == SWITCHES.keys() - {"graphs"}
    monkeypatch.setenv(ACCELERATORS.name, "none")
    assert find_unwanted(None) == SWITCHES.keys()
    for text, unknown in (("programs,speed", "'speed'"), (", ,", "''")):
        monkeypatch.setenv(ACCELERATORS.name, text)
        message = rf"^FUSIONCACHE_ACCELERATORS must be names out of programs, .*, got {unknown}$"
        with pytest.raises(ValueError, match=message):
            find_unwanted(None)


def test_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match=r"accelerators must be names out of programs, sizes, .*, got 'speed'"):
        fusioncache.FusionCache(accelerators=["speed"])
    with pytest.raises(TypeError, match="accelerators must be a list of names or None, got 'programs'"):
        fusioncache.FusionCache(accelerators="programs")
