"""The function that is written for a recipe: its text, and when it leaves everything to the general way."""

import threading
from dataclasses import replace

import pytest
from sample_recipe import FLAT, RECIPE, make_launch

from fusioncache.backends.nvfuser.driver import DriverError
from fusioncache.backends.nvfuser.launch import find_zeroed, lay_out_parameters
from fusioncache.backends.nvfuser.recipe import Duplicate, Fill, Fresh, Input, Pointer, Recipe
from fusioncache.backends.nvfuser.stored_run import MOST_BUFFERS, can_write, write_run, write_text

ADD = Recipe(
    inputs=(Input(FLAT, 16), Input(FLAT, 16)),
    allocations=(128,),
    outputs=(Fresh(FLAT, 0, 0),),
    steps=(
        make_launch(
            parameters=(bytes(24), bytes(24), bytes(24)),
            pointers=(Pointer(0, 0, 0, 0), Pointer(1, 0, 1, 0), Pointer(2, 8, 2, 64)),
        ),
    ),
    widest=16,
)

WRITTEN = """
def run(args):
  a0, a1, = args
  b0 = data_ptr(a0)
  b1 = data_ptr(a1)
  device = get_device(a0)
  steps = threads.get((device, current_thread()))
  if steps is None or (b0 | b1) % 16 or device != current_device():
    return otherwise(args)
  stream = current_stream(device) or DEFAULT
  if stream != steps.stream:
    steps.use(stream)
  f0 = allocate0()
  b2 = data_ptr(f0)
  words = steps.words
  words[0] = b0
  words[8] = b1
  words[17] = b2 + 64
  command0, = steps.commands
  try:
    code = command0()[0]
  except (KeyError, ValueError):
    return otherwise(args)
  if code:
    return otherwise(args)
  return [f0]
"""


COUNTING = replace(
    ADD,
    allocations=(128, 8),
    steps=(
        Fill(3, 0, 8, 0),
        replace(ADD.launches[0], pointers=(*ADD.launches[0].pointers, Pointer(0, 16, 3, 0))),
    ),
)
"""Its blocks count, in memory that is zero at first."""

WITHOUT_ITS_FILL = """
  zeroed = steps.zeroed.take(stream)
  if not zeroed:
    return otherwise(args)
  f0 = allocate0()
  b2 = data_ptr(f0)
  b3 = zeroed
  words = steps.words
  words[0] = b0
  words[8] = b1
  words[17] = b2 + 64
  words[2] = b3
  command0, command1, = steps.commands
  try:
    code = command1()[0]
"""


class Steps:
    """Steps whose commands say what they were given."""

    def __init__(self, *codes, raises=None, pieces=()):
        self.words, self.stream, self.log, self.raises = [0] * 32, None, [], raises
        self.zeroed, self.pieces = self, list(pieces)
        self.commands = [lambda *given, code=code: self._answer(given, code) for code in codes]

    def use(self, stream):
        self.stream = stream

    def take(self, stream):
        return self.pieces.pop(0)

    def fail(self, code):
        raise DriverError(str(code))

    def _answer(self, given, code):
        if self.raises:
            raise self.raises
        self.log.append(given or tuple(filter(None, self.words)))
        return (code,)


def call(recipe, steps, args=(32, 64), *, current=0, stream=5, outputs=(0,)):
    """Calls what is written for a recipe with addresses in place of tensors."""
    functions = {
        "data_ptr": int,
        "get_device": lambda address: 0,
        "current_device": lambda: current,
        "current_stream": lambda device: stream,
    }
    threads = {(0, threading.get_ident()): steps} if steps else {}
    allocators = [lambda place=1024 * (1 + index): place for index in range(len(recipe.allocations))]
    zeroed = find_zeroed(recipe)
    return write_run(recipe, lambda args: "in general", threads, functions, allocators, outputs, zeroed)(args)


def test_the_text_of_a_run():
    assert "\n".join(write_text(ADD, [0], find_zeroed(ADD))) == WRITTEN.strip()
    assert WITHOUT_ITS_FILL in "\n".join(write_text(COUNTING, [0], find_zeroed(COUNTING)))


def test_a_launch_is_given_addresses_where_its_parameters_lie():
    steps = Steps(0)
    assert call(ADD, steps) == [1024]
    assert steps.log == [(32, 64, 1024 + 64)]
    assert steps.stream == 5
    assert [index for index, *_ in lay_out_parameters(ADD.launches).pointers] == [0, 8, 17]


def test_the_default_stream_is_told_by_its_own_handle():
    steps = Steps(0)
    call(ADD, steps, stream=0)
    assert steps.stream == 1


@pytest.mark.parametrize(
    "given",
    [
        {"steps": None},
        {"args": (32, 72)},
        {"args": (40, 64)},
        {"current": 1},
        {"steps": Steps(700)},
        {"steps": Steps(0, raises=ValueError())},
    ],
)
def test_what_is_not_as_ever_is_done_in_general(given):
    assert call(ADD, given.pop("steps", Steps(0)), **given) == "in general"


@pytest.mark.parametrize(("second", "result"), [(2, [1024]), (6, [1024]), (4, "in general"), (1, "in general")])
def test_arguments_are_as_little_aligned_as_captured(second, result):
    recipe = replace(ADD, inputs=(ADD.inputs[0], replace(ADD.inputs[1], alignment=2)))
    assert call(recipe, Steps(0), (16, second)) == result


def test_a_fill_is_told_where_on_the_stream_in_use():
    steps = Steps(0, 0)
    call(replace(ADD, steps=(Fill(2, 8, 100, 255), *ADD.steps)), steps)
    assert steps.log == [(1024 + 8, 255, 100, 5), (32, 64, 1024 + 64)]


def test_what_is_zero_already_is_not_filled():
    steps = Steps(700, 0, pieces=[4096])
    assert call(COUNTING, steps) == [1024]
    assert steps.log == [(32, 4096, 64, 1024 + 64)]
    outputs = [lambda args, fresh: fresh]
    assert call(COUNTING, Steps(0, 0, pieces=[4096]), outputs=outputs) == [(1024, None)]


@pytest.mark.parametrize("steps", [Steps(0, 0, pieces=[0]), Steps(0, 700, pieces=[4096])])
def test_without_memory_that_is_zero_or_a_first_launch_it_is_done_in_general(steps):
    assert call(COUNTING, steps) == "in general"


def test_what_fails_behind_the_first_step_raises():
    recipe = replace(ADD, steps=(*ADD.steps, Fill(2, 0, 128, 0)))
    steps = Steps(0, 700)
    with pytest.raises(DriverError, match="700"):
        call(recipe, steps)
    assert len(steps.log) == 2


def test_outputs_are_collected():
    outputs = [lambda args, fresh: (args, fresh), 0, Duplicate(0)]
    assert call(ADD, Steps(0), outputs=outputs) == [((32, 64), (1024,)), 1024, ((32, 64), (1024,))]


def test_what_nothing_is_written_for():
    assert can_write(ADD) and can_write(RECIPE)
    assert not can_write(replace(ADD, inputs=(), steps=(Fill(0, 0, 1, 0),), outputs=()))
    assert not can_write(replace(ADD, steps=()))
    assert not can_write(replace(ADD, inputs=(Input(FLAT, 16),) * MOST_BUFFERS))
