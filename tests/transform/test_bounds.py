"""With ever new lengths, a process holds few programs with their state, and a store holds few families."""

import gc
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import thunder
import torch
from compared_models import are_equal, train
from models import compile_with
from recorded_templates import make_scaled_template
from stored_programs import Cell, compile_anew, without_interpreter

import fusioncache
from fusioncache.accelerators.programs import program_list
from fusioncache.accelerators.programs.derivation import KnownProgram
from fusioncache.accelerators.programs.text import ProgramText, Read, TraceText, encode
from fusioncache.accelerators.sizes import lengths
from fusioncache.accelerators.sizes.families import (
    Family,
    PassJournal,
    decode_family,
    encode_family,
    find_families,
    remove_family,
    store_family,
)
from fusioncache.accelerators.sizes.journal import SizeGuard
from fusioncache.accelerators.sizes.sizes import Number
from fusioncache.observe.record import ledger
from fusioncache.observe.record.region_codec import encode_regions
from fusioncache.store import Store
from fusioncache.store.entry import FAMILY_SLOTS
from fusioncache.template.key import program_key_of
from fusioncache.transform import templates

MOST = 6


def make_input(length):
    return torch.randn(length, 4, generator=torch.Generator().manual_seed(length))


def entries_of(compiled):
    return thunder.compile_stats(compiled).interpreter_cache


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(program_list, "MOST_ENTRIES", MOST)
    monkeypatch.setattr(templates, "MOST_CALLED", MOST)
    monkeypatch.setattr(ledger, "MOST_TEMPLATES", MOST)
    monkeypatch.setattr(ledger, "MOST_OBSERVATIONS", MOST)


@pytest.fixture
def known(small_limits, tmp_path):
    """Returns a model, and its transform, after calls with as many lengths as programs are held."""
    compiled, transform = compile_anew(Cell(), tmp_path / "store")
    for length in range(2, 2 + MOST):
        train(compiled, make_input(length))
    return compiled, transform


def test_nothing_is_held_for_each_length(small_limits, tmp_path):
    compiled, transform = compile_with(Cell(), cache=fusioncache.Cache(capacity=MOST, store=tmp_path), jobs=0)
    counted, grown = [], None
    for length in range(2, 122):
        train(compiled, make_input(length))
        if length % 15 == 1:
            for number in range(600):  # the last 512 ingredients are cached
                make_scaled_template(2, factor=float(number))
            gc.collect()
            counted.append(Counter(map(type, gc.get_objects())))
        if len(counted) > 4 and length % 15 == 1:  # the first count allocates what counting needs
            # Objects of a length grow each time. Objects of Python and of earlier tests' libraries may grow by chance.
            steps = [after - before for before, after in pairwise(counted[1:])]
            grown = [kind for kind in counted[-1] if min(step[kind] for step in steps) >= 15 / 2]
            if not grown:
                break
    assert grown == []
    stats = transform.stats()
    assert (stats.programs_made, stats.programs_filled) == (2, length - 3)
    assert len(entries_of(compiled)) == MOST
    assert len(transform.calls()) <= 3 * MOST


def test_a_length_that_left_comes_back_as_it_was_without_being_derived(known):
    compiled, transform = known
    expected = {length: train(compiled, make_input(length)) for length in range(2, 2 + MOST)}
    with without_interpreter():
        for length in range(20, 20 + MOST):
            train(compiled, make_input(length))
        for length, results in expected.items():
            assert are_equal(train(compiled, make_input(length)), results)
    stats = transform.stats()
    # The first two were derived, and are in the store.
    assert (stats.programs_made, stats.programs_loaded) == (2, 2)
    assert thunder.compile_stats(compiled).cache_misses == 2


def test_a_program_that_left_goes_backward_once_more(known):
    compiled, _ = known
    expected = train(compiled, make_input(4))
    compiled.zero_grad()
    result = compiled(make_input(4))
    for length in range(20, 20 + MOST):
        compiled(make_input(length))
    gc.collect()
    result.square().sum().backward()
    assert are_equal([result, *(each.grad for each in compiled.parameters())], expected[1:])


def test_the_program_leaves_that_was_not_taken_for_longest_and_has_no_memory_of_its_own(known, monkeypatch):
    """A program captured in a CUDA graph has memory of its own."""
    compiled, _ = known
    entries = [*entries_of(compiled)]
    monkeypatch.setattr(program_list, "is_idle", lambda entry: entry is not entries[1])
    train(compiled, make_input(2))
    train(compiled, make_input(20))
    held = set(map(id, entries_of(compiled)))
    assert [id(entry) in held for entry in entries] == [True, True, False, *[True] * (MOST - 3)]
    monkeypatch.setattr(program_list, "is_idle", lambda entry: False)
    train(compiled, make_input(21))
    assert len(entries_of(compiled)) == MOST + 1


def test_entries_of_the_sizes_are_asked_first_and_then_all_whatever_was_done_to_them():
    chance, sizes = random.Random(0), {0: (2,)}
    for _ in range(100):
        index, entries = program_list.EntryIndex(), [object() for _ in range(8)]
        for entry in entries:
            index.append(entry, {0: (chance.randint(2, 4),)})
        index.append(entries[5], {0: (5,)})
        assert next(index.order(entries, {0: (5,)})) is entries[5]
        for _ in range(chance.randint(0, 4)):
            change = chance.choice([lambda each: each.pop(1), list.reverse, lambda each: each.append(object())])
            change(entries)
            taken = chance.choice(entries)
            for each in index.order(entries, sizes):
                if each is taken:
                    break
        assert set(index.order(entries, sizes)) == set(entries)
        assert len([*index.order(entries, sizes)]) == len(entries)


def test_forms_that_were_not_met_for_long_are_forgotten(tmp_path, monkeypatch):
    """A form is everything in a program besides sizes: here a number that is no size."""
    monkeypatch.setattr(lengths, "MOST_FORMS", 2)
    compiled, _ = compile_anew(lambda x, scale: torch.tanh(x) * scale, tmp_path)

    def count_known():
        gc.collect()
        return sum(type(each) is lengths.InterpretedProgram for each in gc.get_objects())

    before = count_known()
    for scale in (1.5, 2.5, 3.5):
        for length in (2, 3, 4):
            compiled(make_input(length), scale)
    assert count_known() - before == 2 * 2


FORM = program_key_of({"family format": "1"})
LENGTH = Number(1, "x[0]")
REGIONS = encode_regions((), ())


def make_program(length, extra=""):
    traces = (
        TraceText(name, f"def {name}(*args):\n  check({length}){extra}\n") for name in ("prologue", "computation")
    )
    return KnownProgram(
        ProgramText(*traces, None, TraceText("epilogue", "def epilogue():\n  pass\n")), {0: (length,)}, REGIONS
    )


def make_family(*lengths, most=100, reads=""):
    passes = PassJournal(
        ((0, (LENGTH,)),), (SizeGuard("<", LENGTH, most, True, "compares", "model.py:1"),), (), (), (LENGTH,)
    )
    return Family((Read("global", "model.SCALE", reads),), passes, [make_program(length) for length in lengths])


@pytest.mark.parametrize("name", encode_family(make_family(12, 20)))
def test_a_family_without_a_part_is_none_and_is_discarded(name, tmp_path):
    artifacts = dict(encode_family(make_family(12, 20)))
    del artifacts[name]
    with pytest.raises(ValueError, match="no family"):
        decode_family(artifacts)
    for content in (b"", b"{}", b"\xff", encode(make_program(20, " + 1.5").text)):
        with pytest.raises(ValueError):
            decode_family({**artifacts, name: content})
    store = Store.open(tmp_path, remote="")
    store.save(FORM, FAMILY_SLOTS[0], artifacts)
    with pytest.warns(RuntimeWarning, match="a stored family that does not decode"):
        assert find_families(store, FORM) == ()
    assert store.load(FORM, FAMILY_SLOTS[0]) is None


def test_a_program_without_records_is_not_learned():
    family = make_family(12, 20)
    assert not family.learn(replace(make_program(28), regions=None)) and family.learn(make_program(28))
    assert decode_family(encode_family(family)).is_same(family)


def test_a_store_has_one_slot_for_each_family_and_the_oldest_goes_where_there_is_no_room(tmp_path):
    store = Store.open(tmp_path / "store", remote="")
    families = [make_family(12, 20, most=100 + number) for number in range(len(FAMILY_SLOTS))]
    families.append(make_family(12, 20, reads="another"))
    for family in families:
        store_family(store, FORM, family, "Model")

    def list_kept():
        return [any(each.is_same(family) for each in find_families(store, FORM)) for family in families]

    assert list_kept() == [False, True, True, True, True] and len(find_families(store, FORM)) == len(FAMILY_SLOTS)
    remove_family(store, FORM, families[1])
    assert list_kept() == [False, False, True, True, True]
