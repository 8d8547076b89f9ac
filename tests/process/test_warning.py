"""Warnings, none of which ends the call that issues it, and the line that names what is being compiled."""

import io
import logging
import sys
import threading
import warnings
from unittest import mock

import pytest
import torch
from models import compile_with
from pool_processes import wait_until

import fusioncache
from fusioncache.process import warning
from fusioncache.process.warning import ProgressLine, warn


def test_a_warning_names_the_package_and_the_line_of_the_user():
    with pytest.warns(RuntimeWarning, match="^fusioncache: something is wrong$") as caught:
        warn("something is wrong")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("how", ["error", "always"])
def test_a_warning_that_is_an_error_or_cannot_be_shown_is_logged(caplog, monkeypatch, how):
    with warnings.catch_warnings():
        warnings.simplefilter(how)
        monkeypatch.setattr(warnings, "showwarning", mock.Mock(side_effect=OSError("no screen")))
        warn("50% is wrong")
    assert caplog.record_tuples == [("fusioncache", logging.WARNING, "fusioncache: 50% is wrong")]


def test_a_model_runs_where_warnings_are_errors_and_everything_goes_wrong(tmp_path, monkeypatch, caplog):
    no_directory = tmp_path / "file"
    no_directory.touch()
    monkeypatch.setenv("FUSIONCACHE_DIR", str(no_directory))
    monkeypatch.setenv("FUSIONCACHE_LOG", str(no_directory / "log"))
    monkeypatch.setattr("fusioncache.backends.eager.Eager.compile", None)
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: "eager")
    cache = fusioncache.Cache(store=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compiled, _ = compile_with(lambda x: torch.tanh(x) * 2, cache=cache)
        assert torch.equal(compiled(torch.ones(2)), torch.tanh(torch.ones(2)) * 2)
    said = "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    for part in ("this run is not recorded", "events are not logged", "runs operation by operation"):
        assert said.count(part) == 1


NO_THREAD = mock.Mock(side_effect=RuntimeError("can't start new thread"))


def test_a_model_runs_without_a_directory_a_thread_or_a_stream(tmp_path, monkeypatch, recwarn):
    """As in a container without a home, after the main thread has ended, with ``2>&1 | head``."""
    gone, closed = tmp_path / "gone", io.StringIO()
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    closed.close()
    for name, value in (("LOG", "here.jsonl"), ("PASSES", "1"), ("EXPLAIN", "1"), ("REMOTE", str(tmp_path))):
        monkeypatch.setenv(f"FUSIONCACHE_{name}", value)
    monkeypatch.delenv("FUSIONCACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", mock.Mock(side_effect=RuntimeError("no home")))
    monkeypatch.setattr(threading.Thread, "start", NO_THREAD)
    monkeypatch.setattr(sys, "stderr", closed)
    for store in (True, tmp_path / "store", tmp_path / "store"):
        compiled, transform = compile_with(lambda x: torch.tanh(x) * 2, cache=fusioncache.Cache(store=store))
        assert torch.equal(compiled(torch.ones(2)), torch.tanh(torch.ones(2)) * 2)
        assert not transform.stats().bypasses and not transform.stats().programs_refused
    assert transform.stats().programs_loaded == 1
    said = "\n".join(str(each.message) for each in recwarn)
    for part in (
        "is not recorded. no directory is found: no home. Set FUSIONCACHE_DIR",
        "events are not logged",
        "traces",
    ):
        assert part in said


def set_terminal(monkeypatch) -> io.StringIO:
    """Returns a terminal to which messages are written without delay."""
    made = io.StringIO()
    monkeypatch.setattr(made, "isatty", lambda: True)
    assert warning.SILENCE == 5.0
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(warning, "SILENCE", 0.0)
    return made


def test_nothing_is_said_where_no_thread_can_be_started(monkeypatch):
    terminal = set_terminal(monkeypatch)
    monkeypatch.setattr(threading.Timer, "start", NO_THREAD)
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


def test_where_there_is_no_terminal_there_is_neither_line_nor_thread():
    before = set(threading.enumerate())
    closed = io.StringIO()
    closed.close()
    for stream in (io.StringIO(), closed, object()):
        with mock.patch.object(sys, "stderr", stream), ProgressLine().show(lambda: "compiling"):
            assert set(threading.enumerate()) <= before


def test_a_terminal_that_fails_ends_nothing(monkeypatch):
    terminal, failed = set_terminal(monkeypatch), threading.Event()

    def fail(text: str) -> int:
        failed.set()
        raise OSError

    monkeypatch.setattr(terminal, "write", fail)
    with ProgressLine().show(lambda: "compiling"):
        assert failed.wait(240)
