"""The line on a terminal that says what is being compiled."""

import io
import sys
import threading

from pool_processes import wait_until

from fusioncache.process import warning
from fusioncache.process.warning import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(terminal: Terminal, text: str) -> None:
    wait_until(lambda: text in terminal.getvalue())


def test_nothing_is_said_for_less_than_five_seconds(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert warning.SILENCE == 5.0
    monkeypatch.setattr(warning, "SILENCE", 600.0)
    with ProgressLine().show(lambda: "compiling"):
        pass
    assert terminal.getvalue() == ""


def test_a_line_is_written_anew_and_erased_in_the_end_and_no_thread_stays(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(warning, "SILENCE", 0.0)
    before, line = set(threading.enumerate()), ProgressLine()
    with line.show(lambda: "compiling 3 regions, 3 left"):
        wait_for(terminal, "3 left")
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


def test_where_no_thread_can_be_started_nothing_is_shown(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(threading.Timer, "start", refuse)
    done = []
    with ProgressLine().show(lambda: "compiling"):
        done.append(True)
    assert done and terminal.getvalue() == ""


def test_a_terminal_that_fails_ends_nothing(monkeypatch):
    failed = threading.Event()

    class Broken(Terminal):
        def write(self, text: str) -> int:
            failed.set()
            raise OSError

    monkeypatch.setattr(warning, "SILENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", Broken())
    with ProgressLine().show(lambda: "compiling"):
        assert failed.wait(240)
