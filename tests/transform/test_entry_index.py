"""A call asks the prologues that may pass, and no others: what would pass is never left out."""

import random

import pytest
import thunder
import torch
from stored_programs import compile_anew

from fusioncache.accelerators.programs.entry_index import EntryIndex, find_compared

PROLOGUE = """\
import torch

@torch.no_grad()
def prologue(*args, **kwargs):
  # args: "Any"
  check_len(args, 6)
    # prims.check_len(args, 6)
  k: "cpu f32[4]" = kwargs['k']
  x: "cpu f32[3, 4]" = args[0]
  check_tensor_metadata(x, (3, 4), 'cpu', torch.float32, False)
    # prims.check_tensor_shape_and_metadata(x, (3, 4), 'cpu', torch.float32, False)
  t_1 = args[1]
  unchecked: "cpu f32[3, 4]" = args[2]
  weight: "cpu f32[4, 4]" = module.get_parameter('0.weight')
  check_tensor_shape_and_metadata(t_1, (), 'cpu', torch.float32, False)
  check_tensor_metadata(weight, (4, 4), 'cpu', torch.float32, True)
  check_tensor_metadata(k, (4,), 'cpu', torch.float32, False)
  i0: "int 5" = kwargs['n']
  check_number_type_and_value(i0, 5)
  i1: "bool True" = args[3]
  check_number_type_and_value(i1, True)
  symbolic: "cpu f32[s0]" = args[4]
  check_tensor_metadata(symbolic, (s0,), 'cpu', torch.float32, False)
  pair: "Any" = args[5]
  check_len(pair, 2)
  inner = pair['in']
  t_5_in_1: "cpu f32[7]" = inner[1]
  t_5_in_0: "cpu f32[7]" = inner[0]
  check_tensor_metadata(t_5_in_1, (7,), 'cpu', torch.float32, False)
  return ((x, k), ())
"""


def test_what_a_prologue_compares_is_read_off_its_text():
    assert find_compared(PROLOGUE) == {0, 1, "k", "n", (5, "in", 1)}
    assert find_compared("") == frozenset()


def make_index(*made):
    """An index of entries, each of which is made for sizes, and compares these places."""
    index, entries = EntryIndex(), []
    for sizes, compared in made:
        entries.append(object())
        index.append(entries[-1], sizes, compared)
    return index, entries


def ask(index, entries, sizes):
    return [entries.index(each) for each in index.order(entries, sizes)]


def test_entries_for_other_sizes_are_left_out_where_these_are_compared():
    index, entries = make_index(
        ({0: (2, 3), 1: (4,)}, {0, 1}),
        ({0: (2, 3), 1: (5,)}, {0}),
        ({0: (2, 3)}, {0}),
        ({0: (7, 3), 1: (4,)}, {0, 1}),
        ({0: (7, 3), 1: (4,)}, set()),
        ({0: (2, 3), 1: (4,)}, {0, 1}),
    )
    assert ask(index, entries, {0: (2, 3), 1: (4,)}) == [5, 4, 2, 1, 0]
    assert ask(index, entries, {0: (2, 3), 1: (9,)}) == [4, 2, 1]
    assert ask(index, entries, {0: (8, 3), 1: (4,)}) == [4]
    # Of an argument that is no plain tensor any more nobody knows the sizes.
    assert ask(index, entries, {0: (2, 3)}) == [4, 2, 1, 5, 3, 0]


def test_entries_of_which_nobody_knows_what_they_compare_come_behind():
    index, entries = make_index(({0: (2,)}, None), ({0: (3,)}, None), ({0: (3,)}, {0}), ({}, None))
    assert ask(index, entries, {0: (3,)}) == [3, 2, 1, 0]
    assert ask(index, entries, {0: (2,)}) == [3, 0, 1]
    assert ask(index, entries, {0: (9,)}) == [3, 1, 0]


@pytest.mark.parametrize("change", [lambda each: each.pop(1), lambda each: each.reverse(), lambda each: each.append(1)])
def test_whoever_changes_the_entries_has_all_of_them_tried(change):
    index, entries = make_index(*[({0: (length,)}, {0}) for length in range(2, 8)])
    change(entries)
    assert sorted(ask(index, entries, {0: (2,)})) == [*range(len(entries))]
    assert ask(index, entries, {0: (99,)}) == [*reversed(range(len(entries)))]


def test_an_entry_that_would_pass_is_never_left_out():
    """Random entries: one passes where all that it compares has the size that it was made for."""
    chance = random.Random(0)
    for _ in range(200):
        made = []
        for _ in range(12):
            sizes = {place: (chance.randint(2, 3),) for place in (0, 1, "k") if chance.random() < 0.9}
            compared = {place for place in sizes if chance.random() < 0.6}
            made.append((sizes, compared if chance.random() < 0.8 else None))
        index, entries = make_index(*made)
        call = {place: (chance.randint(2, 3),) for place in (0, 1, "k")}
        seen = dict(list(call.items())[: chance.randint(1, 3)])
        asked = ask(index, entries, seen)
        assert len(asked) == len(set(asked))
        for number, (sizes, compared) in enumerate(made):
            passes = all(sizes[place] == call[place] for place in (sizes if compared is None else compared))
            assert number in asked or not passes


def test_what_is_no_plain_tensor_finds_its_entry(tmp_path):
    model = torch.nn.Linear(4, 4)
    compiled, _ = compile_anew(model, tmp_path)
    for rows in range(2, 10):
        compiled(torch.ones(rows, 4, requires_grad=True))
    entries = thunder.compile_stats(compiled).interpreter_cache
    parameter = torch.nn.Parameter(torch.ones(3, 4))
    assert torch.equal(compiled(parameter), model(parameter)) and len(entries) == 8
