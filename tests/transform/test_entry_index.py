"""A call asks the prologues first that were made for its sizes, and all others behind them."""

import random

import thunder
import torch
from stored_programs import compile_anew

from fusioncache.accelerators.programs.program_list import EntryIndex


def make_index(*sizes, keys=None):
    """An index of entries, each of which is made for sizes."""
    index, entries = EntryIndex(), []
    for number, each in enumerate(sizes):
        entries.append(object())
        index.append(entries[-1], each, keys[number] if keys else None)
    return index, entries


def ask(index, entries, sizes):
    return [entries.index(each) for each in index.order(entries, sizes)]


def take(index, entries, sizes, entry):
    for each in index.order(entries, sizes):
        if each is entries[entry]:
            break


def test_all_entries_are_asked_whatever_was_done_to_them():
    chance = random.Random(0)
    for _ in range(100):
        index, entries = make_index(*[{0: (chance.randint(2, 4),)} for _ in range(8)])
        for _ in range(chance.randint(0, 4)):
            change = chance.choice(
                [lambda each: each.pop(1), lambda each: each.reverse(), lambda each: each.append(object())]
            )
            change(entries)
            take(index, entries, {0: (2,)}, chance.randrange(len(entries)))
        assert sorted(ask(index, entries, {0: (2,)})) == [*range(len(entries))]


def test_the_entry_that_was_not_taken_for_longest_leaves():
    index, entries = make_index(*({0: (length,)} for length in (2, 2, 3, 4)), keys=["a", "b", None, "d"])
    take(index, entries, {0: (2,)}, 0)
    assert index.take_surplus(3, lambda entry: True) is None
    assert index.take_surplus(2, lambda entry: entry is not entries[1]) == (entries[3], "d")
    assert index.take_surplus(1, lambda entry: True) == (entries[1], "b")
    assert index.take_surplus(0, lambda entry: entry is not entries[0]) is None
    assert ask(index, [entries[0], entries[2]], {0: (2,)}) == [0, 1]


def test_what_is_no_plain_tensor_finds_its_entry(tmp_path):
    model = torch.nn.Linear(4, 4)
    compiled, _ = compile_anew(model, tmp_path)
    for rows in range(2, 10):
        compiled(torch.ones(rows, 4, requires_grad=True))
    entries = thunder.compile_stats(compiled).interpreter_cache
    parameter = torch.nn.Parameter(torch.ones(3, 4))
    assert torch.equal(compiled(parameter), model(parameter)) and len(entries) == 8
