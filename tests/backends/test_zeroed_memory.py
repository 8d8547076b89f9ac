"""Memory that is zero: which allocations of a recipe lie in it, and that each launch has a piece that was filled."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from sample_recipe import FLAT, make_launch

from fusioncache.backends.nvfuser import launch
from fusioncache.backends.nvfuser.launch import BLOCK, MOST_BYTES, ZeroedMemory, find_zeroed
from fusioncache.backends.nvfuser.recipe import Fill, Fresh, Input, Pointer, Recipe

PIECES = BLOCK // 512


def launch_with(*buffers: int):
    return make_launch(pointers=tuple(Pointer(1, 8 * place, buffer, 0) for place, buffer in enumerate(buffers)))


COUNTING = Recipe(
    inputs=(Input(FLAT, 16),),
    allocations=(128, 8),
    outputs=(Fresh(FLAT, 0, 0),),
    steps=(Fill(2, 0, 8, 0), launch_with(0, 1, 2)),
    widest=16,
)
"""Its blocks count in the second allocation."""


def test_what_is_filled_with_zeros_before_all_else_lies_in_a_piece():
    assert find_zeroed(COUNTING).places == {1: 0}
    assert find_zeroed(COUNTING).size == 512
    twice = replace(
        COUNTING,
        allocations=(8, 128, 520, 8),
        outputs=(Fresh(FLAT, 1, 0),),
        steps=(Fill(1, 0, 8, 0), launch_with(0, 1, 2), Fill(3, 0, 520, 0), Fill(4, 0, 8, 0), launch_with(3, 4)),
    )
    assert find_zeroed(twice).places == {0: 0, 2: 512, 3: 1536}
    assert find_zeroed(twice).size == 2048


OTHERS = {
    "another value": {"steps": (Fill(2, 0, 8, 255), launch_with(0, 1, 2))},
    "a part of it": {"steps": (Fill(2, 0, 4, 0), launch_with(0, 1, 2))},
    "not from its start": {"steps": (Fill(2, 4, 4, 0), launch_with(0, 1, 2))},
    "behind a launch that has it": {"steps": (launch_with(2), Fill(2, 0, 8, 0), launch_with(0, 1, 2))},
    "once more between two launches": {"steps": (*COUNTING.steps, Fill(2, 0, 8, 0), launch_with(2))},
    "with ones once more": {"steps": (*COUNTING.steps, Fill(2, 0, 8, 255))},
    "not at all": {"steps": (launch_with(0, 1, 2),)},
    "an output": {"outputs": (Fresh(replace(FLAT, shape=(1, 2)), 1, 0),)},
    "too much": {"allocations": (128, MOST_BYTES + 1), "steps": (Fill(2, 0, MOST_BYTES + 1, 0), launch_with(0, 1, 2))},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_all_else_is_allocated_and_filled_for_each_launch(changes):
    assert not find_zeroed(replace(COUNTING, **changes)).places


class Stream:
    """Fills memory of the CPU, and says what it was told."""

    def __init__(self) -> None:
        self.fills: list[tuple[int, int, int, int]] = []
        self.code = 0
        self.blocks: list[torch.Tensor] = []

    def fill(self, *given: int) -> tuple[int]:
        self.fills.append(given)
        if not self.code:
            self.blocks[-1].fill_(0)
        return (self.code,)

    def allocate(self, size: int) -> torch.Tensor:
        self.blocks.append(torch.full((size,), 255, dtype=torch.uint8))
        return self.blocks[-1]


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    stream = Stream()
    monkeypatch.setattr(launch, "allocate_bytes", stream.allocate)
    monkeypatch.setattr(launch, "is_capturing", lambda: stream.capturing)
    stream.capturing = False
    yield stream


def count_in(stream: Stream, address: int, size: int = 512) -> None:
    """Does what a launch does: finds zeros, and leaves something else."""
    block = stream.blocks[-1]
    start = address - block.data_ptr()
    assert 0 <= start <= len(block) - size
    assert not block[start : start + size].any()
    block[start : start + size] = 7


def test_each_launch_has_zeros_and_one_fill_does_for_many(stream):
    memory = ZeroedMemory(512, stream.fill)
    for _ in range(3 * PIECES):
        count_in(stream, memory.take(5))
    (block,) = stream.blocks
    assert stream.fills == [(block.data_ptr(), 0, BLOCK, 5)] * 3


def test_pieces_of_any_size_lie_in_the_block(stream):
    memory = ZeroedMemory(1536, stream.fill)
    for _ in range(2 * (BLOCK // 1536)):
        count_in(stream, memory.take(5), 1536)
    assert [fill[2] for fill in stream.fills] == [BLOCK // 1536 * 1536] * 2


def test_another_stream_has_a_block_of_its_own(stream):
    memory = ZeroedMemory(512, stream.fill)
    for number in (5, 6, 5):
        count_in(stream, memory.take(number))
    assert [fill[3] for fill in stream.fills] == [5, 6, 5]
    assert len(stream.blocks) == 3


def test_a_capture_is_given_nothing(stream):
    memory = ZeroedMemory(512, stream.fill)
    count_in(stream, memory.take(5))
    stream.capturing = True
    assert memory.take(5) == 0
    stream.capturing = False
    count_in(stream, memory.take(5))
    assert len(stream.fills) == 1


def test_a_fill_that_fails_gives_nothing(stream):
    memory = ZeroedMemory(512, stream.fill)
    stream.code = 700
    assert memory.take(5) == memory.take(5) == 0
    stream.code = 0
    count_in(stream, memory.take(5))
    stream.code = 700
    for _ in range(PIECES - 1):
        count_in(stream, memory.take(5))
    assert memory.take(5) == 0  # not the first piece again, which is no zero any more
    assert len(stream.fills) == 4
