"""The function that is written for a recipe: what it launches, and when it leaves the region to others."""

import threading
from dataclasses import replace

import pytest
from sample_recipe import FLAT, make_launch

from fusioncache.backends.nvfuser.driver import NO_CONTEXT, DriverError
from fusioncache.backends.nvfuser.recipe import Fill, Fresh, Input, Pointer, Recipe
from fusioncache.backends.nvfuser.stored_run import DEFAULT_STREAM, write_run

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


class Steps:
    """Steps whose commands say what they were given."""

    def __init__(self, *codes, raises=None):
        self.words, self.stream, self.log, self.raises, self.bound = [0] * 32, None, [], raises, []
        self.commands = [lambda *given, code=code: self._answer(given, code) for code in codes]

    def use(self, stream):
        self.stream = stream

    def _answer(self, given, code):
        if self.raises:
            raise self.raises
        self.log.append(given or tuple(filter(None, self.words)))
        return (0 if code == NO_CONTEXT and self.bound else code,)


def fail(code):
    raise DriverError(str(code))


def call(recipe, steps, args=(32, 64), *, current=0, stream=5, outputs=(0,)):
    """Calls what is written for a recipe with addresses in place of tensors."""
    names = {
        "data_ptr": int,
        "get_device": lambda address: 0,
        "current_device": lambda: current,
        "current_stream": lambda device: stream,
        "current_thread": threading.get_ident,
        "DEFAULT": DEFAULT_STREAM,
        "NO_CONTEXT": NO_CONTEXT,
        "DriverError": DriverError,
        "home": 0,
        "threads": {(0, threading.get_ident()): steps} if steps else {},
        "otherwise": lambda args: "otherwise",
        "prepare": lambda args, device: "prepared",
        "bind": steps.bound.append if steps else None,
        "fail": fail,
        "give_up": lambda args, device, why: f"given up: {why}",
        **{f"allocate{index}": lambda place=1024 * (1 + index): place for index in range(len(recipe.allocations))},
    }
    return write_run(recipe, outputs, names)(args)


def test_the_default_stream_is_told_by_its_own_handle():
    steps = Steps(0)
    call(ADD, steps, stream=0)
    assert steps.stream == 1


@pytest.mark.parametrize(
    ("given", "result"),
    [
        ({"steps": None}, "prepared"),
        ({"current": 1}, "prepared"),
        ({"args": (32, 72)}, "otherwise"),
        ({"args": (40, 64)}, "otherwise"),
        ({"steps": Steps(700)}, "given up: 700"),
        ({"steps": Steps(0, raises=ValueError("unknown"))}, "given up: unknown"),
    ],
)
def test_what_is_not_as_ever_is_left_to_others(given, result):
    assert call(ADD, given.pop("steps", Steps(0)), **given) == result


def test_a_thread_without_a_context_gets_one():
    steps = Steps(NO_CONTEXT)
    assert call(ADD, steps) == [1024]
    assert steps.bound == [0] and len(steps.log) == 2


def test_a_fill_is_told_where_on_the_stream_in_use():
    steps = Steps(0, 0)
    call(replace(ADD, steps=(Fill(2, 8, 100, 255), *ADD.steps)), steps)
    assert steps.log == [(1024 + 8, 255, 100, 5), (32, 64, 1024 + 64)]
