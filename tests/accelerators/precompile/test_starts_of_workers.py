"""A compiler's start in a process beside: waiting for it is no part of a load."""

import pytest

from fusioncache.accelerators.precompile import ahead
from fusioncache.accelerators.precompile.ahead import CrewHelpers, start_within
from fusioncache.accelerators.precompile.crew import Answer
from fusioncache.accelerators.precompile.entry_compiler import Outcome
from fusioncache.cache.peers import Wait
from fusioncache.ir import Key

_DONE = Outcome("compiled")


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
    assert start_within(waited, Answer(_DONE, seconds, started=started)) == expected


def test_what_a_call_waited_for_a_start_is_known(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: now[0])

    class NothingStored:
        def entry(self, *of):
            return None

    class Crew:
        def hand_over(self, task):
            return 1

        def take(self, number, help_):
            now[0] += 14.0
            return Answer(_DONE, 14.0, started=12.0)

    class Request:
        backend = "inductor"

    class Ask:
        key = Key("0", "", ())
        request = Request()

    helpers = CrewHelpers(NothingStored(), Crew())  # type: ignore[arg-type]
    key = Ask.key
    assert helpers.hand_over([Ask()]) == 1  # type: ignore[list-item]
    assert helpers.wait_for(key) == Wait(beside=True, on_start=12.0)
