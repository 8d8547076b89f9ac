"""Outputs of stored nvFuser kernels: in the memory of an argument, alone in an allocation, several in one."""

from dataclasses import replace

import torch
from sample_recipe import FLAT, RECIPE

from fusioncache.backends.nvfuser import stored_run
from fusioncache.backends.nvfuser.recipe import Duplicate, Fresh, Layout, View
from fusioncache.backends.nvfuser.stored_run import find_whole_outputs, make_allocators, write_outputs

ARGS = [torch.arange(32.0).reshape(4, 8), torch.zeros(8, dtype=torch.bfloat16)]


def collect(recipe, fresh, *, poison=False):
    collected = []
    for each in write_outputs(recipe, poison):
        match each:
            case int():
                collected.append(fresh[each])
            case Duplicate():
                collected.append(collected[each.output])
            case _:
                collected.append(each(ARGS, fresh))
    return collected


def test_outputs_are_made_of_allocations():
    fresh = [torch.zeros(4, 8), torch.arange(512, dtype=torch.uint8)]
    first, view, again, part = collect(RECIPE, fresh)
    assert first is again is fresh[0]
    assert view.tolist() == list(range(8, 16))
    assert view.data_ptr() == ARGS[0].data_ptr() + 32
    assert part.shape == (4, 8)
    assert not part._is_view()
    assert part.data_ptr() == fresh[1].data_ptr() + 128
    itself = replace(RECIPE, outputs=(View(FLAT, 0, 0, True),))
    assert collect(itself, fresh)[0] is ARGS[0]
    poisoned = collect(RECIPE, [torch.arange(128, dtype=torch.uint8), fresh[1]], poison=True)
    assert poisoned[0].shape == (4, 8)


def test_an_output_that_fills_its_allocation_is_made_in_one():
    assert find_whole_outputs(RECIPE, False) == {0: 0}
    assert find_whole_outputs(RECIPE, True) == {}


ROWS, TAIL, BYTES = Layout("float32", (32,), (1,)), Layout("float32", (2, 4), (4, 1)), Layout("int32", (32,), (1,))
SHARED = replace(RECIPE, outputs=(Fresh(TAIL, 0, 96), Fresh(FLAT, 0, 0), Fresh(ROWS, 0, 0), Fresh(BYTES, 0, 0)))


def test_several_outputs_lie_in_one_allocation():
    assert find_whole_outputs(SHARED, False) == {0: 1}
    memory = torch.arange(32.0).reshape(4, 8)
    tail, whole, rows, words = collect(SHARED, [memory, None])
    assert whole is memory
    assert (rows.shape, rows.data_ptr(), rows.dtype) == ((32,), memory.data_ptr(), torch.float32)
    assert (words.shape, words.data_ptr(), words.dtype) == ((32,), memory.data_ptr(), torch.int32)
    assert tail.tolist() == [[24.0, 25.0, 26.0, 27.0], [28.0, 29.0, 30.0, 31.0]]
    # As nvFuser's are: nothing says that they share their memory, or were changed with one another.
    assert not any(each._is_view() or each.requires_grad for each in (tail, rows, words))
    before = rows._version
    whole.add_(1)
    assert rows._version == before and rows[0] == 1.0


def test_workspaces_are_bytes(monkeypatch):
    made = []
    monkeypatch.setattr(stored_run.guards, "_empty_strided_cuda", lambda *given: made.append(given))
    for allocate in make_allocators(RECIPE, False):
        allocate()
    assert made == [((4, 8), (8, 1), torch.float32), ((512,), (1,), torch.uint8)]
