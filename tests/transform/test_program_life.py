"""The life of a program: derived and kept by one transform, loaded by another one over the same store."""

import gc
import os
import sys
import threading
import weakref
from dataclasses import replace
from types import FunctionType

import pytest
import torch
from models import Blocks, are_same, step
from stored_programs import Cell, compile_anew, counts, without_interpreter
from threads_at_once import run_at_once

import fusioncache
from fusioncache.accelerators.programs.program_list import ProgramList
from fusioncache.accelerators.programs.programs import find_candidates, keep_program
from fusioncache.ir import Ingredient, Key
from fusioncache.ir.keys import read_key

thunder = pytest.importorskip("thunder")


def make_key(entry):
    """The key of a stored entry."""
    texts = read_key(entry.text)
    digests = dict(entry.ingredients)
    return Key(entry.digest, entry.text, tuple(Ingredient(name, text, digests[name]) for name, text in texts.items()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store, the model and input whose program for training it has, and the first step's results."""
    directory = tmp_path_factory.mktemp("programs")
    torch.manual_seed(0)
    model, x = Blocks(1), torch.randn(5, 16)
    compiled, transform = compile_anew(model, directory)
    results = step(compiled, model, x)
    assert counts(transform) == (0, 1, {})
    return directory, model, x, results


@pytest.fixture
def cell(tmp_path):
    """A store with the program of a small model, that model, and an input."""
    torch.manual_seed(0)
    model, x = Cell(), torch.randn(3, 4)
    compiled, transform = compile_anew(model, tmp_path)
    compiled(x)
    assert counts(transform) == (0, 1, {})
    return tmp_path, model, x


def test_a_program_is_loaded_and_nothing_is_interpreted(trained):
    directory, model, x, results = trained
    compiled, transform = compile_anew(model, directory)
    with without_interpreter():
        for _ in range(3):
            assert are_same(step(compiled, model, x), results)
    assert counts(transform) == (1, 0, {})
    assert (thunder.cache_hits(compiled), thunder.cache_misses(compiled)) == (3, 0)


def test_a_model_that_is_changed_after_loading_is_guarded_as_by_thunder(cell):
    directory, model, x = cell
    compiled, transform = compile_anew(model, directory)
    compiled(x)
    model.scale = 3.0
    assert torch.equal(compiled(x), model(x))
    assert counts(transform) == (1, 1, {})


def test_a_failed_guard_of_a_loaded_program_is_a_reason(cell, monkeypatch):
    directory, model, x = cell
    compiled, transform = compile_anew(model, directory)
    with monkeypatch.context() as patch:
        keeper = type(transform.program_keeper)
        build = keeper.build

        def build_unfit(*args):
            def prologue(*_args, **_kwargs):
                raise ValueError("another guard")

            return build(*args)._replace(prologue_fn=prologue)

        patch.setattr(keeper, "build", build_unfit)
        assert torch.equal(compiled(x), model(x))
    # It is derived, and kept beside the one that did not fit.
    assert counts(transform) == (0, 1, {"its guards fail for these inputs": 1})
    assert len(thunder.compile_stats(compiled).interpreter_cache) == 1


def test_the_environment_turns_programs_off(cell, monkeypatch):
    directory, model, x = cell
    monkeypatch.setenv("FUSIONCACHE_PROGRAMS", "0")
    compiled, transform = compile_anew(model, directory)
    compiled(x)
    assert counts(transform) == (0, 0, {})
    compiled, transform = compile_anew(model, directory, programs=True)
    compiled(x)
    assert counts(transform) == (1, 0, {})


def test_two_transforms_keep_nothing(tmp_path):
    caches = [fusioncache.Cache(record=False, store=tmp_path) for _ in range(2)]
    transforms = [fusioncache.FusionCache(cache=cache, backend="eager", jobs=0) for cache in caches]
    compiled = thunder.jit(Cell(), executors=fusioncache.executors(), transforms=transforms)
    compiled(torch.randn(3, 4))
    assert [counts(transform) for transform in transforms] == [(0, 0, {})] * 2


@pytest.mark.parametrize("option", ["no caching", "symbolic values"])
def test_other_ways_to_cache_keep_nothing(tmp_path, option):
    cache = fusioncache.Cache(record=False, store=tmp_path)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", jobs=0)
    compiled = thunder.jit(torch.tanh, executors=fusioncache.executors(), transforms=[transform], cache=option)
    compiled(torch.randn(3, 4))
    assert counts(transform) == (0, 0, {})


def test_whatever_goes_wrong_thunder_derives_as_ever(cell, monkeypatch):
    directory, model, x = cell
    compiled, transform = compile_anew(model, directory)

    def fail(*_args):
        raise RuntimeError("broken")

    monkeypatch.setattr(type(transform.program_keeper), "describe", fail)
    with pytest.warns(RuntimeWarning, match="neither loaded nor stored: RuntimeError"):
        assert torch.equal(compiled(x), model(x))
    compiled(x[:2])
    assert counts(transform) == (0, 0, {"failed: RuntimeError": 2})


def test_what_fails_while_thunder_traces_is_not_kept(cell):
    directory, model, _ = cell
    compiled, transform = compile_anew(model, directory)
    with pytest.raises(RuntimeError):
        compiled(torch.randn(3, 5))
    with pytest.raises(RuntimeError):
        compiled(torch.randn(3, 5))
    assert counts(transform) == (0, 0, {})


def test_a_program_is_not_kept_if_its_key_changes_meanwhile(tmp_path, monkeypatch):
    model, x = Cell(), torch.randn(3, 4)
    compiled, transform = compile_anew(model, tmp_path)

    def change(*traces, **_options):
        model.scale = 5.0
        return traces

    monkeypatch.setattr(transform, "transform_traces_pre_prologue", change)
    with pytest.raises(RuntimeError, match=r"Expected 5.0 to be equal"):  # Thunder's own guard sees it as well
        compiled(x)
    assert counts(transform) == (0, 0, {"`model.scale` changed while the program was traced": 1})


def test_threads_at_their_first_call_agree(trained, monkeypatch):
    directory, model, x, results = trained
    compiled, transform = compile_anew(model, directory)
    keeper, together, outputs = type(transform.program_keeper), threading.Barrier(4, timeout=240), []
    build = keeper.build

    def build_together(*args):
        together.wait()  # none finds what another one has loaded
        return build(*args)

    monkeypatch.setattr(keeper, "build", build_together)
    run_at_once(*[lambda: outputs.append(compiled(x).detach())] * 4)
    assert are_same(outputs, [results[0]] * 4)
    assert counts(transform) == (4, 0, {})


def list_replaced():
    """Returns what Thunder's modules have that is written in ours, by module and name."""
    named = [(module, item) for module in list(sys.modules.values()) for item in list(vars(module).items())]
    return [
        (module.__name__, name)
        for module, (name, value) in named
        if module.__name__.partition(".")[0] == "thunder" and isinstance(value, FunctionType)
        if value.__code__.co_filename.startswith(os.path.dirname(fusioncache.__file__))
    ]


def test_uninstall_gives_thunder_its_own_back(cell):
    directory, model, x = cell
    compiled, transform = compile_anew(model, directory)
    fusioncache.tracing.uninstall()
    try:
        assert list_replaced() == []
        assert type(thunder.common.CompileStats().interpreter_cache) is list
        for inputs in (x, x[:2]):
            assert torch.equal(compiled(inputs), model(inputs))
        assert counts(transform) == (0, 0, {})
    finally:
        fusioncache.tracing.install()
    compiled, transform = compile_anew(model, directory)
    assert type(thunder.compile_stats(compiled).interpreter_cache) is ProgramList


def test_a_loaded_and_a_derived_program_forget_the_arguments_of_their_first_call(cell):
    directory, model, x = cell
    compiled, transform = compile_anew(model, directory)
    watched = []
    for rows in (3, 2):
        watched.append(weakref.ref(inputs := x[:rows].clone()))
        compiled(inputs)
        del inputs
    assert counts(transform) == (1, 1, {})
    gc.collect()
    assert [each() for each in watched] == [None, None]


def test_a_program_that_cannot_be_built_is_derived_again(cell, monkeypatch):
    directory, model, x = cell
    compiled, transform = compile_anew(model, directory)

    def fail(*_args):
        raise KeyError("no such thing")

    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="nor stored: KeyError$"):
        patch.setattr("fusioncache.accelerators.programs.programs.build_program", fail)
        assert torch.equal(compiled(x), model(x))
    assert counts(transform) == (0, 1, {"failed: KeyError": 1})


class Called(torch.nn.Module):
    """Does what a text says, and another thing for one of its own."""

    def __init__(self):
        super().__init__()
        self.linear, self.note = torch.nn.Linear(4, 4), "Zq note"

    def forward(self, x, how, **more):
        x = self.linear(x) if how == "Zq layer" else x * 2
        return x if self.note == "Zq note" and more["other"] != "Zq less" else x - 1


def test_programs_that_compare_texts_are_loaded_and_compare_them_in_every_call(tmp_path):
    """Also the faster prologue of a loaded one, and what is filled in for another length."""
    model = Called()
    cases = [("Zq layer", "Zq more"), ("Zq twice", "Zq more"), ("Zq layer", "Zq less")]
    for derived in (1, 0):
        compiled, transform = compile_anew(model, tmp_path)
        for length in (3, 5, 7):
            x = torch.randn(length, 4)
            for _ in range(4):
                for how, other in cases:
                    assert torch.equal(compiled(x, how, other=other), model(x, how, other=other))
        assert transform.stats().programs_refused == {}
        assert (transform.stats().programs_loaded > 0, transform.stats().programs_filled > 0) == (not derived, True)
        model.note = "Zq other"
        assert torch.equal(compiled(x, "Zq layer", other=""), model.linear(x) - 1)
        model.note = "Zq note"
    compiled, transform = compile_anew(model, tmp_path, verify=True)
    assert torch.equal(compiled(x[:3], "Zq layer", other="Zq more"), model.linear(x[:3]))
    contents = (path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not any(b"Zq " in content for content in contents)


def test_verify_mode_raises_where_a_stored_program_is_another_one(cell):
    directory, model, x = cell
    store = fusioncache.Cache(record=False, store=directory).store
    (entry,) = [each for each in store.entries() if each.backend == "program"]
    key = make_key(store.entry(entry.digest, "program"))
    (candidate,) = find_candidates(store, key)
    source = candidate.text.computation.source
    other = replace(candidate.text.computation, source=source.replace("torch.nn.functional.linear(", "torch.add("))
    store.remove(key, "program")
    keep_program(store, key, replace(candidate.text, computation=other), candidate.reads, name="Cell", seconds=1)
    compiled, transform = compile_anew(model, directory, verify=True)
    with pytest.raises(fusioncache.VerificationError, match="its forward trace differs") as raised:
        compiled(x)
    assert "-  t" in str(raised.value) and "torch.add(" in str(raised.value)
    assert counts(transform) == (0, 0, {})
