"""The record of a job that runs or was killed: what a first step did is there at once; later steps leave it alone."""

import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from contextlib import closing

import thunder
import torch
from commands import call, get_output
from models import train_residual
from pool_processes import wait_until
from recorded_templates import begin_run, count_compile, make_chain_template, make_ledger
from repository import HELPERS, ROOT, import_path

import fusioncache
from fusioncache.cache.cache import Cache
from fusioncache.observe.record import database as recorder
from fusioncache.observe.record.database import RecordReader, record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import CompileRecord

_JOB = """
from models import train_residual
stats = train_residual().stats()
print(stats.compiles, flush=True)
input()
"""


def _read_counts():
    """The rows of `stats -v` that are counts: the job may still add to its seconds after the last compilation."""
    rows = [line.split() for line in get_output("stats", "-v").splitlines()]
    return [row for row in rows if row and row[-1].isdecimal()]


def test_a_job_that_goes_on_and_one_that_was_killed():
    before = train_residual().stats()
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", _JOB], env=environment, text=True, **pipes) as job:
        assert job.stdout is not None and int(job.stdout.readline()) == before.compiles > 0
        said = []

        def is_written():
            """What follows shortly on a template is written beside the steps."""
            said.append(_read_counts())
            return ["compiles", str(before.compiles)] in said[-1]

        wait_until(is_written)
        job.send_signal(signal.SIGKILL)
    assert job.returncode == -signal.SIGKILL
    assert _read_counts() == said[-1]
    assert "\nIt is still running, or was killed after " in get_output("stats")
    run, first = RecordReader().runs()
    assert (run.pid, first.pid, run.models) == (job.pid, os.getpid(), ("Residual",))
    assert len(RecordReader().records(run.id, CompileRecord)) == before.compiles
    # Neither has a store, so each compiles what the other does, whichever comes first.
    for runs in ((first.id, run.id), (run.id, first.id)):
        data = json.loads(get_output("diff", *runs, "--json"))
        assert len(data["compiled_again"]) == before.templates and not data["new_templates"]
        assert data["counts"]["compiles"] == {"old": before.compiles, "new": before.compiles}


def test_what_many_templates_do_is_written_together(monkeypatch):
    opened, timers, real = [], [], recorder.open_for_writing
    monkeypatch.setattr(recorder, "open_for_writing", lambda path: opened.append(path) or real(path))
    monkeypatch.setattr(threading.Timer, "start", lambda timer: timers.append(timer))
    writer = recorder.RecordWriter(ledger := Ledger())
    for number in range(5):
        ledger.history.begin_trace()
        ledger.emit("program made", model=f"model {number}")
        writer.append()
    assert opened == []
    (timer,) = timers
    timer.function()
    assert len(opened) == 1
    (run,) = RecordReader().runs()
    assert run.stats.programs_made == 5


def test_where_no_thread_can_be_started_the_end_of_the_process_saves(monkeypatch):
    def refuse(timer):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    writer = recorder.RecordWriter(ledger := Ledger())
    ledger.history.begin_trace()
    ledger.emit("program made", model="model")
    for _ in range(2):
        writer.append()
    assert not record_path().exists()
    writer.end()
    (run,) = RecordReader().runs()
    assert (run.stats.programs_made, run.ended) == (1, True)


def test_later_steps_do_not_touch_the_record(monkeypatch):
    opened = []
    monkeypatch.setattr(threading.Timer, "start", lambda timer: timer.function())  # at once, on this thread
    real = recorder.open_for_writing
    monkeypatch.setattr(recorder, "open_for_writing", lambda *args: opened.append(args) or real(*args))
    stats = train_residual(1).stats()
    after_one = len(opened)
    # Two traces, and at most once for each first call of a template.
    assert 2 < after_one <= 2 + stats.templates
    (run,) = RecordReader().runs()
    assert run.stats == stats and len(RecordReader().records(run.id, CompileRecord)) == stats.compiles
    train_residual(4)
    assert len(opened) == 2 * after_one


def test_a_step_does_not_wait_for_processes_that_write_all_the_time(monkeypatch, recwarn):
    monkeypatch.setattr(recorder, "APPEND_SECONDS", 0.0)
    monkeypatch.setattr(recorder, "LOCK_SECONDS", 120.0)
    ledger = make_ledger(make_chain_template())
    recorder_ = begin_run(ledger)
    count_compile(ledger, make_chain_template(), 1.0)
    with closing(sqlite3.connect(record_path())) as other:
        other.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        recorder_.append()
        assert time.monotonic() - start < recorder.LOCK_SECONDS / 2
    recorder_.save()
    (run,) = RecordReader().runs()
    assert run.stats == ledger.stats() and len(RecordReader().records(run.id, CompileRecord)) == 2
    assert not run.ended and not recwarn.list


def test_a_run_without_regions_is_a_run():
    transform = fusioncache.FusionCache(cache=fusioncache.Cache())
    compiled = thunder.jit(torch.nn.Linear(3, 3), transforms=[transform], executors=["torch"])
    compiled(torch.randn(2, 3))
    assert "pass executors=fusioncache.executors()" in " ".join(call("stats").stdout.split())
    (run,) = RecordReader().runs()
    assert (run.stats.regions, run.models) == (0, ("Linear",))


def _python(script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_counts_after_the_last_save_are_written_at_exit_and_those_of_a_forked_child_are_not():
    script = """
import gc, os, sys
from fusioncache.cache.cache import Cache
from recorded_templates import count_compile, make_chain_template
def main():
    cache = Cache()
    cache.ledger.count_region(make_chain_template(), (3,), hit=False)
    cache.write_record()
    child = os.fork()
    if child == 0:
        cache.ledger.count_region(make_chain_template(), (5,), hit=True)
        cache.write_record()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    count_compile(cache.ledger, make_chain_template(), 2.5)
main()
gc.collect()
"""
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = RecordReader().runs()
    assert (run.stats.regions, run.stats.compiles, run.stats.compile_seconds, run.ended) == (1, 1, 2.5, True)


def test_a_cache_in_use_is_not_kept_alive_by_its_record():
    cache = Cache()
    cache.ledger.count_region(make_chain_template(), (), hit=False)
    cache.write_record()
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
