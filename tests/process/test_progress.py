"""The line on a terminal that says what is being compiled."""

import io
import sys
import threading

import pytest
from pool_processes import wait_until

from fusioncache.process import warning
from fusioncache.process.warning import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def set_terminal(monkeypatch) -> Terminal:
    """Returns a terminal to which everything is said at once."""
    made = Terminal()
    assert warning.SILENCE == 5.0
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(warning, "SILENCE", 0.0)
    return made


def refuse(self):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(("what", "value"), [((warning, "SILENCE"), 600.0), ((threading.Timer, "start"), refuse)])
def test_nothing_is_said_at_first_and_where_no_thread_can_be_started(monkeypatch, what, value):
    terminal = set_terminal(monkeypatch)
    monkeypatch.setattr(*what, value)
    with ProgressLine().show(lambda: "compiling"):
        pass
    assert terminal.getvalue() == ""


def test_a_line_is_written_anew_and_erased_in_the_end_and_no_thread_stays(monkeypatch):
    terminal = set_terminal(monkeypatch)
    before, line = set(threading.enumerate()), ProgressLine()
    with line.show(lambda: "compiling 3 regions, 3 left"):
        wait_until(lambda: "3 left" in terminal.getvalue())
        with line.show(lambda: "one inside"):
            line.say("compiling 3 regions, 2 left")
    said = "".join(f"\r\x1b[Kfusioncache: compiling 3 regions, {left} left" for left in (3, 2))
    assert terminal.getvalue() == f"{said}\r\x1b[K"
    assert set(threading.enumerate()) <= before


def test_where_there_is_no_terminal_there_is_neither_line_nor_thread(monkeypatch):
    before = set(threading.enumerate())
    closed = io.StringIO()
    closed.close()
    for stream in (io.StringIO(), closed, object()):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            with ProgressLine().show(lambda: "compiling"):
                assert set(threading.enumerate()) <= before


def test_a_terminal_that_fails_ends_nothing(monkeypatch):
    terminal, failed = set_terminal(monkeypatch), threading.Event()

    def fail(text: str) -> int:
        failed.set()
        raise OSError

    monkeypatch.setattr(terminal, "write", fail)
    with ProgressLine().show(lambda: "compiling"):
        assert failed.wait(240)
