"""A pool: what is handed over has an answer, and nothing waits for one for ever, whatever dies or hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import as_completed
from functools import partial
from itertools import count
from pathlib import Path
from unittest import mock

import pytest
from pool_processes import fork_process, is_running, make_plays, make_pool, play, read_played, wait_until
from repository import HELPERS, import_path
from store_contents import fork, wait_for
from store_processes import fill_store

from fusioncache.accelerators.precompile import pool as pools
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler
from fusioncache.accelerators.precompile.pool import CompilePool
from fusioncache.process.warning import warn_once

pytestmark = pytest.mark.filterwarnings("ignore:This process")
ENVIRONMENT = {**os.environ, "PYTHONPATH": import_path(HELPERS)}


@pytest.fixture(autouse=True)
def _play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "start_process", fork_process)
    monkeypatch.setattr(EntryCompiler, "compile", play)
    warn_once.cache_clear()


def give_device(monkeypatch: pytest.MonkeyPatch, open_device: Callable[[int | None], object]) -> None:
    """Gives workers a backend that opens its device in this way."""
    backend = type("Other", (), {"open_device": staticmethod(open_device), "prepare": staticmethod(lambda: None)})
    monkeypatch.setattr(pools, "BACKENDS", {"other": None})
    monkeypatch.setattr(pools, "backend_class", lambda name: backend)


def note(path: Path, text: str) -> bool:
    """Adds a text to a file."""
    with path.open("a") as file:
        return file.write(text) > 0


def reasons(pool: CompilePool, *digests: str) -> list[str]:
    """What becomes of tasks, in order of the answers."""
    return [future.result().reason for future in as_completed(pool.submit(make_plays(*digests)))]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_worker_that_dies_costs_its_own_task(tmp_path, jobs):
    with make_pool(tmp_path, jobs) as pool:
        found = [future.result().reason for future in pool.submit(make_plays("a", "kill 1", "b", "kill 2", "c"))]
        assert found == ["a", "worker died", "b", "worker died", "c"]
        assert reasons(pool, "d") == ["d"]


def test_workers_that_hang_are_ended_after_a_while(tmp_path, monkeypatch):
    """An hour passes at each look at the clock as soon as one hangs."""
    hours = count(1)

    def read_clock():
        return 3600.0 * next(hours) if any(digest == "hang" for digest, _ in read_played(tmp_path)) else 0.0

    monkeypatch.setattr(pools, "Workers", partial(pools.Workers, clock=read_clock))
    with make_pool(tmp_path, 1) as pool, pytest.warns(RuntimeWarning, match="failed or hung: it compiles alone"):
        assert reasons(pool, "quick") == ["quick"]
        assert reasons(pool, "hang", "after") == ["no worker starts"] * 2
        assert pool.has_failed and reasons(pool, "more") == ["no worker starts"]
    wait_until(lambda: not any(is_running(pid) for _, pid in read_played(tmp_path)))


def test_workers_that_are_of_no_use_are_not_tried_again(tmp_path, monkeypatch):
    tried = tmp_path / "tried"

    def open_device(number):
        note(tried, "x")
        raise MemoryError("full")

    give_device(monkeypatch, open_device)
    with make_pool(tmp_path, 2, "other") as pool, pytest.warns(RuntimeWarning, match="failed or hung"):
        assert reasons(pool, *"abcd") == ["no worker starts"] * 4
        assert reasons(pool, *"efg") == ["no worker starts"] * 3
    assert 1 <= len(tried.read_text()) <= 2
    monkeypatch.setattr(pools, "start_process", mock.Mock(side_effect=OSError("too many")))
    with make_pool(tmp_path, 2) as pool:
        assert not pool.start() and reasons(pool, "a") == ["no worker starts"]


def test_workers_that_start_early_wait_for_the_first_task(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "REST_SECONDS", 0.0)
    opened = tmp_path / "opened"
    give_device(monkeypatch, lambda number: note(opened, f"{os.getpid()} "))
    with make_pool(tmp_path, 2, "other") as pool:
        pool.open_early(0)
        wait_until(lambda: opened.exists() and len(opened.read_text().split()) == 2)
        assert reasons(pool, "a") == ["a"]
    assert {pid for _, pid in read_played(tmp_path)} < set(map(int, opened.read_text().split()))


def test_a_process_that_is_killed_leaves_no_worker_and_nothing_waiting(tmp_path):
    with make_pool(tmp_path, 2) as pool, pytest.warns(RuntimeWarning, match="failed or hung"):
        futures = pool.submit(make_plays("wait for ever 0", "wait for ever 1"))
        wait_until(lambda: len(read_played(tmp_path)) == 2)
        os.kill(pool.pid, signal.SIGKILL)
        assert [future.result().reason for future in futures] == ["no worker starts"] * 2
        wait_until(lambda: not any(is_running(pid) for _, pid in read_played(tmp_path)))
        assert pool.has_failed


def test_a_process_that_hangs_is_killed_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "END_SECONDS", 0.2)
    with make_pool(tmp_path, 1) as pool:
        assert reasons(pool, "a") == ["a"]
        os.kill(pool.pid, signal.SIGSTOP)
        (future,) = pool.submit(make_plays("b"))
        pool.end()
        assert future.result().reason == "no worker starts"


def test_a_forked_child_leaves_the_pool_to_its_parent(tmp_path):
    with make_pool(tmp_path, 1) as pool:
        (future,) = pool.submit(make_plays("wait go"))

        def child():
            assert pool.submit(make_plays("the child's"))[0].result().reason == "no worker starts"
            pool.end()

        assert wait_for(fork(child)) == 0
        (tmp_path / "go").touch()
        assert future.result().reason == "wait go"


_OWNER = """
import sys, time
from pathlib import Path
from pool_processes import fork_process, make_plays, play, read_played, wait_until
from fusioncache.accelerators.precompile import pool
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler
pool.start_process, EntryCompiler.compile = fork_process, play
directory = Path(sys.argv[1])
made = pool.CompilePool(directory / "store", 2, "")
made.submit(make_plays("wait for ever 0", "wait for ever 1"))
print(made.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["wait_until(lambda: False)", "wait_until(lambda: len(read_played(directory)) == 2)"])
def test_nothing_is_left_of_a_process_that_is_killed_or_ends(tmp_path, end):
    command = [sys.executable, "-W", "ignore", "-c", _OWNER.format(end=end), str(tmp_path)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as owner:
        children = [int(owner.stdout.readline())]
        wait_until(lambda: len(read_played(tmp_path)) == 2)
        children += [pid for _, pid in read_played(tmp_path)]
        if "False" in end:
            owner.kill()
    assert owner.returncode == (-signal.SIGKILL if "False" in end else 0)
    wait_until(lambda: not any(map(is_running, children)))


_UNGUARDED = """
import sys
import fusioncache
print("imported", __name__)
print(fusioncache.warm(sys.argv[1], jobs=2).refused)
"""


def test_a_script_without_a_guard_is_not_imported_by_workers(tmp_path):
    fill_store(tmp_path / "store")
    script = tmp_path / "script.py"
    script.write_text(_UNGUARDED)
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "store")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["imported __main__", "{'backend eager stores nothing': 2}"]
    assert not done.stderr
