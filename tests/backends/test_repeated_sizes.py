"""When sizes that come again are captured: here without a GPU, as what is captured makes no difference to that."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fusioncache.backends.api import NotPersistable, NotPersistableNow
from fusioncache.backends.nvfuser import repeated_sizes
from fusioncache.backends.nvfuser.repeated_sizes import AFTER, Pace, launch_if_repeated


class Captures:
    """Takes the place of what captures: keeps what it was asked for, and gives or raises what it is told to."""

    def __init__(self, *answers):
        self.asked, self.answers = [], list(answers)

    def __call__(self, run, args):
        self.asked.append(args)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Always(Pace):
    def begin(self):
        return True

    def end(self, seconds):
        pass


def called(monkeypatch, captures, times, pace=None):
    """Returns what each of so many calls was answered by: nvFuser, or what was captured."""
    monkeypatch.setattr(repeated_sizes, "launch_of", captures)
    call = launch_if_repeated(lambda args: ["nvFuser"], pace or Always())
    return [call([index])[0] for index in range(times)]


def test_a_size_that_comes_again_is_captured_once(monkeypatch):
    captures = Captures(lambda args: ["launched"])
    answers = called(monkeypatch, captures, AFTER + 5)
    assert answers == ["nvFuser"] * (AFTER - 1) + ["launched"] * 6 and captures.asked == [[AFTER - 1]]


@pytest.mark.parametrize("refusal", [NotPersistable("a kernel that is not understood"), RuntimeError("out of memory")])
def test_what_cannot_be_captured_is_not_tried_again(monkeypatch, refusal):
    captures = Captures(refusal)
    assert set(called(monkeypatch, captures, 300)) == {"nvFuser"} and len(captures.asked) == 1


def test_what_the_moment_forbids_is_tried_again(monkeypatch):
    captures = Captures(NotPersistableNow("a CUDA graph is being captured"), lambda args: ["launched"])
    answers = called(monkeypatch, captures, AFTER + 105)
    assert [asked for [asked] in captures.asked] == [AFTER - 1, AFTER + 99]
    assert answers[AFTER + 98] == "nvFuser" and answers[AFTER + 99] == "launched"


def test_captures_are_spread(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(repeated_sizes.time, "monotonic", lambda: now[0])
    pace = Pace()
    with ThreadPoolExecutor(1) as other:
        assert pace.begin() and not other.submit(pace.begin).result()  # one at a time, and nobody waits
    pace.end(0.5)
    now[0] += 9.9
    assert not pace.begin()
    now[0] += 0.2
    assert pace.begin()


def test_a_capture_that_has_to_wait_is_made_by_a_later_call(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(repeated_sizes.time, "monotonic", lambda: now[0])
    pace = Pace()
    pace.begin()
    pace.end(1.0)
    captures = Captures(lambda args: ["launched"])
    monkeypatch.setattr(repeated_sizes, "launch_of", captures)
    call = launch_if_repeated(lambda args: ["nvFuser"], pace)
    assert {call([0])[0] for _ in range(2 * AFTER)} == {"nvFuser"} and not captures.asked
    now[0] += 20.0
    assert call([1]) == ["launched"] and captures.asked == [[1]]
