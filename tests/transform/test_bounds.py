"""A process that meets ever new lengths holds a bounded number of programs, and of all that belongs to them."""

import gc
import inspect
import linecache
import weakref
from collections import Counter
from itertools import pairwise

import pytest
import thunder
import torch
from recorded_templates import make_scaled_template
from stored_programs import compile_anew, without_interpreter
from torch import nn

import fusioncache
from fusioncache.accelerators.programs import program_list
from fusioncache.accelerators.sizes import lengths
from fusioncache.observe.record import ledger
from fusioncache.transform import templates

MOST = 6
WIDTH = 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.linear(x)) * 0.5


def make_input(length, dtype=torch.float32):
    return torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(length)).to(dtype)


def train(compiled, model, length):
    model.zero_grad()
    result = compiled(make_input(length))
    result.square().sum().backward()
    return result.detach(), *(parameter.grad.clone() for parameter in model.parameters())


def are_equal(found, expected):
    return all(map(torch.equal, found, expected))


def entries_of(compiled):
    return thunder.compile_stats(compiled).interpreter_cache


def is_held(compiled, entry):
    return any(each is entry for each in entries_of(compiled))


@pytest.fixture
def few(monkeypatch):
    """Bounds that are reached after some lengths."""
    monkeypatch.setattr(program_list, "MOST_ENTRIES", MOST)
    monkeypatch.setattr(templates, "MOST_CALLED", MOST)
    monkeypatch.setattr(ledger, "MOST_TEMPLATES", MOST)
    monkeypatch.setattr(ledger, "MOST_OBSERVATIONS", MOST)


@pytest.fixture
def known(few, tmp_path):
    """A model that is compiled for some lengths already: those of the first programs, and as many as are held."""
    model = Block()
    compiled, transform = compile_anew(model, tmp_path / "store")
    for length in range(2, 2 + MOST):
        train(compiled, model, length)
    return model, compiled, transform


def count_objects(cache):
    for number in range(600):  # of ingredients the last 512 are remembered
        make_scaled_template(2, factor=float(number))
    gc.collect()
    return Counter(map(type, gc.get_objects()))


def test_nothing_is_held_for_each_length(few, tmp_path):
    model = Block()
    cache = fusioncache.Cache(capacity=MOST, store=tmp_path)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", jobs=0)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    counted, length = [], 1

    def train_up_to(last):
        nonlocal length
        while length < last:
            length += 1
            train(compiled, model, length)
        counted.append(count_objects(cache))

    def find_grown():
        """Returns the kinds of which each 15 lengths left some, with how many."""
        grown = {kind: [after[kind] - before[kind] for before, after in pairwise(counted[1:])] for kind in counted[-1]}
        return {kind: growth for kind, growth in grown.items() if min(growth) >= 15 / 2}

    for last in (20, 31, 46, 61):  # the first count makes what counting needs
        train_up_to(last)
    # What a length holds grows each time. What Python and earlier tests' libraries keep may grow twice by chance.
    while find_grown() and length < 121:
        train_up_to(length + 15)
    assert find_grown() == {}
    stats = transform.stats()
    assert (stats.programs_made, stats.programs_filled) == (2, length - 3)
    assert len(entries_of(compiled)) == MOST
    assert len(transform.calls()) <= 3 * MOST


def test_a_length_that_left_comes_back_as_it_was_without_being_derived(known):
    model, compiled, transform = known
    expected = {length: train(compiled, model, length) for length in range(2, 2 + MOST)}
    with without_interpreter():
        for length in range(20, 20 + MOST):
            train(compiled, model, length)
        for length, results in expected.items():
            assert are_equal(train(compiled, model, length), results)
    stats = transform.stats()
    # The first two were derived, and are in the store.
    assert (stats.programs_made, stats.programs_loaded) == (2, 2)
    assert thunder.compile_stats(compiled).cache_misses == 2


def test_a_backward_runs_after_its_program_left(known):
    model, compiled, _ = known
    expected = train(compiled, model, 3)
    model.zero_grad()
    result = compiled(make_input(3))
    (entry,) = (each for each in entries_of(compiled) if each.computation_traces is compiled._lc_cs.last_traces)
    for length in range(20, 20 + MOST):
        compiled(make_input(length))
    assert not is_held(compiled, entry)
    del entry
    gc.collect()
    result.square().sum().backward()
    assert are_equal((result.detach(), *(each.grad for each in model.parameters())), expected)


def test_what_belongs_to_a_program_leaves_with_it(known):
    model, compiled, transform = known
    train(compiled, model, 4)  # from the second call on it goes another way
    (entry,) = (each for each in entries_of(compiled) if each.computation_traces is compiled._lc_cs.last_traces)
    function = inspect.unwrap(entry.computation_fn)
    file = function.__code__.co_filename
    called = entry.computation_traces[0].python_ctx().values()
    call = weakref.ref(next(call for call in transform.calls() if call.target.function in called))
    assert "def computation" in "".join(linecache.getlines(file))
    gone = weakref.ref(function)
    del entry, function, called
    for length in range(20, 20 + 3 * MOST):
        train(compiled, model, length)
        train(compiled, model, length)
    gc.collect()
    assert gone() is None and call() is None
    assert file not in linecache.cache


def test_what_runs_in_memory_of_its_own_stays(known, monkeypatch):
    """As what was captured in a CUDA graph does."""
    model, compiled, _ = known
    entries = [*entries_of(compiled)]
    monkeypatch.setattr(program_list, "is_idle", lambda entry: entry is not entries[0] and entry is not entries[1])
    train(compiled, model, 20)
    assert [is_held(compiled, entry) for entry in entries] == [True, True, False, *[True] * (MOST - 3)]


def test_forms_that_were_not_met_for_long_are_forgotten(tmp_path, monkeypatch):
    """A form is what a program has besides sizes: here a number that is no size."""
    monkeypatch.setattr(lengths, "MOST_FORMS", 2)

    class Scaled(Block):
        def forward(self, x, scale=1.0):
            return super().forward(x) * scale

    model = Scaled()
    compiled, transform = compile_anew(model, tmp_path)
    kinds = (lengths.InterpretedProgram, lengths.WatchedProgram)

    def count_known():
        gc.collect()
        return sum(type(each) in kinds for each in gc.get_objects())

    before = count_known()
    for scale in (1.5, 2.5, 3.5):
        for length in (2, 3, 4):
            assert torch.equal(compiled(make_input(length), scale), model(make_input(length), scale))
        assert count_known() - before <= 2 * 3
    stats = transform.stats()
    assert (stats.programs_made, stats.programs_filled) == (6, 3)
    # The store has the family, so that it is filled in again.
    with without_interpreter():
        assert torch.equal(compiled(make_input(5), 1.5), model(make_input(5), 1.5))
    assert transform.stats().programs_filled == 4
