"""Frames: instructions decoded once, those of Python for errors without a busy loop, one in place of a whole stack."""

from __future__ import annotations

import _thread
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache, update_wrapper, wraps
from queue import SimpleQueue
from types import CodeType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from fusioncache.thunder_adapter.interpreter.steps import keeps_history

_MOST_CODE_OBJECTS = 4096


def cache_instructions(original: ModuleType) -> ModuleType:
    """Makes a copy of the module ``dis`` that decodes each code object once, as the same ones run again and again."""

    @lru_cache(maxsize=_MOST_CODE_OBJECTS)
    def get_instructions(code: Any) -> tuple[Any, ...]:
        return tuple(original.get_instructions(code))

    copy = ModuleType(original.__name__, original.__doc__)
    copy.__dict__.update(vars(original), get_instructions=get_instructions)
    return copy


def shorten_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes note of the next instruction and of its place in the source, which nobody writes down."""

    @wraps(original)
    def nexti(self: Any, inst: Any) -> None:
        if keeps_history():
            return original(self, inst)
        self.inst = inst
        if inst.positions is not None:
            self.positions = inst.positions
        return None

    return nexti


def describe_one_frame(original: Callable[..., None]) -> Callable[..., None]:
    """Describes the one frame that is asked for, where Thunder has Python describe the whole stack.

    For that the source of each frame is looked for, in all modules that there are: 40 ms under thirty frames.
    """
    names = {**original.__globals__, "inspect": SimpleNamespace(stack=lambda: _Stack(sys._getframe(1)))}
    return update_wrapper(FunctionType(original.__code__, names), original)


class _Stack:
    """What ``inspect.stack`` returns, of which a frame is described when it is asked for."""

    __slots__ = ("_innermost",)

    def __init__(self, innermost: FrameType):
        self._innermost = innermost

    def __getitem__(self, number: int) -> inspect.FrameInfo:
        frame: FrameType | None = self._innermost
        for _ in range(number):
            frame = frame and frame.f_back
        if frame is None:
            raise IndexError("there are not as many frames")
        found = inspect.getframeinfo(frame)
        return inspect.FrameInfo(frame, *found, positions=found.positions)


def sleep_for_frame(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sleeps until another thread has made a frame, where Thunder waits in a busy loop.

    Python lets the other thread run after 5 ms of such a loop only. Each exception that a model's code catches, as each
    ``for`` loop does at its end, costs that much. If the waiting thread sleeps, the other one runs at once.
    """

    @wraps(original)
    def get_or_make_python_frame(self: Any) -> Any:
        frames: SimpleQueue[Any] = SimpleQueue()
        # On a thread of its own, which is not given this frame, or what it makes would keep alive all that led here.
        _thread.start_new_thread(_put_frame, (frames, self.code, self.qualname, self.positions.lineno))
        frame = frames.get()
        if isinstance(frame, BaseException):
            raise frame
        return frame

    return get_or_make_python_frame


def _put_frame(frames: SimpleQueue[Any], code: CodeType, qualname: str, line: int | None) -> None:
    try:
        frames.put(_make_raising_frame(code, qualname, line))
    except BaseException as error:  # or the other thread waits for ever
        frames.put(error)


def _make_raising_frame(code: CodeType, qualname: str, line: int | None) -> FrameType:
    """Makes a frame that looks as if this code had raised an exception in this line."""

    def function() -> None:
        pass

    first = code.co_firstlineno
    lines_before = "\n" * ((first if line is None else line) - first)
    raising = compile(f"{lines_before}raise ValueError()", code.co_filename, "exec")
    function.__code__ = raising.replace(
        co_filename=code.co_filename, co_firstlineno=first, co_name=code.co_name, co_qualname=qualname
    )
    try:
        function()
    except ValueError as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next.tb_frame
    raise AssertionError("it raises")
