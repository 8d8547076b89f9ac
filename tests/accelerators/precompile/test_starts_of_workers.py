"""A compiler's start in a process beside: waiting for it is no part of a load."""

from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from store_processes import make_unary_region

from fusioncache.accelerators.precompile import ahead
from fusioncache.accelerators.precompile.ahead import PoolHelpers, start_within
from fusioncache.accelerators.precompile.entry_compiler import TaskOutcome
from fusioncache.cache.peers import Ask, Wait
from fusioncache.ir import Key
from fusioncache.store.locks import TOO_LONG
from fusioncache.store.store import Turn


@pytest.mark.parametrize(
    ("waited", "seconds", "started", "expected"),
    [
        (14.0, 14.0, 12.0, 12.0),  # from the beginning
        (5.0, 14.0, 12.0, 3.0),  # the last 2 s were the compile
        (1.0, 14.0, 12.0, 0.0),  # it compiled already
        (20.0, 14.0, 12.0, 12.0),  # something else was compiled first
        (2.0, 2.0, 0.0, 0.0),
    ],
)
def test_a_wait_is_for_the_start_before_it_is_for_the_compile(waited, seconds, started, expected):
    assert start_within(waited, TaskOutcome("compiled", seconds=seconds, on_start=started)) == expected


def test_what_a_call_waited_for_a_start_is_known(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: now[0])

    future: Future[TaskOutcome] = Future()

    class StoreOfOthers:
        """Another process is at everything, and done at the second look."""

        def entry(self, *of):
            return None

        @contextmanager
        def take_turn(self, *of):
            if now[0] > 100.0:
                future.set_result(TaskOutcome("compiled", seconds=14.0, on_start=12.0))
            now[0] += 7.0
            yield Turn(None, TOO_LONG)

    class Pool:
        def start(self):
            return True

        def submit(self, tasks):
            return [future]

    class Request:
        backend = "inductor"
        graph = make_unary_region()

    ask = Ask(Key("0", "", ()), Request(), None)  # type: ignore[arg-type]
    helpers = PoolHelpers(StoreOfOthers(), Pool())  # type: ignore[arg-type]
    assert helpers.hand_over([ask]) == 1
    assert helpers.wait_for(ask.key) == Wait(beside=True, on_start=12.0)
