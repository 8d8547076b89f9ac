"""The line on a terminal that says what is being compiled. No second passes, and the terminal is a fake one."""

import io
import threading

from fusioncache.process.warning import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    """A clock that only goes on while a line waits, half a second each time."""

    def __init__(self, longest: float = 0.0):
        self.now = 100.0
        self.until = 100.0 + longest
        self.over = threading.Event()

    def read(self) -> float:
        return self.now

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        if self.now >= self.until:
            self.over.set()
            return ended.wait()
        self.now += seconds
        return False

    def pass_(self, seconds: float) -> None:
        self.over.clear()
        self.until = self.now + seconds


def make(seconds: float) -> tuple[ProgressLine, Terminal, Time]:
    time, terminal = Time(seconds), Terminal()
    return ProgressLine(terminal, time.read, time.wait), terminal, time


def test_nothing_is_said_for_less_than_five_seconds():
    line, terminal, time = make(4.5)
    with line.show(lambda: "compiling"):
        assert time.over.wait(10)
    assert terminal.getvalue() == ""


def test_a_line_is_written_anew_and_erased_in_the_end_and_no_thread_stays():
    before = threading.active_count()
    line, terminal, time = make(5.0)
    with line.show(lambda: "compiling 3 regions, 3 left"):
        assert time.over.wait(10)
        line.say("compiling 3 regions, 2 left")
        assert threading.active_count() == before + 1
        with line.show(lambda: "one inside"):
            assert threading.active_count() == before + 1
    assert terminal.getvalue() == "\r\x1b[Kfusioncache: compiling 3 regions, 3 left\r\x1b[K"
    assert threading.active_count() == before


def test_where_there_is_no_terminal_there_is_neither_line_nor_thread():
    before = threading.active_count()
    closed = io.StringIO()
    closed.close()
    for stream in (io.StringIO(), closed, object()):
        line = ProgressLine(stream)
        with line.show(lambda: "compiling"):
            assert threading.active_count() == before


def test_a_terminal_that_fails_ends_nothing():
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise OSError

    time = Time(6.0)
    line = ProgressLine(Broken(), time.read, time.wait)
    with line.show(lambda: "compiling"):
        assert time.over.wait(10)
