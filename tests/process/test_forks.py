"""A forked child can use its parent's memory, whichever code the parent's other threads were running."""

import os
import re
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import torch
from models import compile_with, curve
from repository import PACKAGE
from store_contents import fork, make_numbered_key, wait_for
from store_processes import Process, X, Y, make_region

import fusioncache
from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser.persistence import KernelDatabase
from fusioncache.cache import peers
from fusioncache.process import forks


def ends_well(work) -> bool:
    """True if a forked child runs this without an error."""

    def child():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # if it hangs
        work()

    return wait_for(fork(child)) == 0


@contextmanager
def stopped_halfway(work):
    """Runs ``work`` on a thread that stops where ``work`` calls its argument, until the block ends."""
    halfway, go_on = threading.Event(), threading.Event()

    def stop():
        halfway.set()
        go_on.wait()

    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        while not halfway.wait(0.01):
            assert thread.is_alive(), "it ended before it was halfway"
        yield
    finally:
        go_on.set()
        thread.join()


def test_a_thread_compiles_while_another_one_forks(monkeypatch):
    """Both compile the same template, in the same cache, and in the very same model."""
    own = Eager.compile
    cache = fusioncache.Cache(record=False, store=False)
    shared, _ = compile_with(curve, cache=cache)
    x = torch.ones(3)

    def compile_and_stop(stop):
        def halfway(*args):
            if threading.current_thread() is not threading.main_thread():
                stop()
            return own(*args)

        monkeypatch.setattr(Eager, "compile", halfway)
        shared(x)

    def child():
        for compiled in (shared, compile_with(curve, cache=cache)[0]):
            assert torch.equal(compiled(x), curve(x))
        assert cache.stats().compiles == 1

    with stopped_halfway(compile_and_stop):
        assert ends_well(child)
    assert cache.stats().compiles == 1


def test_all_locks_may_be_held_by_threads_that_are_gone(tmp_path):
    cache = fusioncache.Cache(record=True, store=tmp_path)
    (compiled, _), process = compile_with(curve, cache=cache), Process(tmp_path)
    compiled(torch.ones(3))
    assert process.cache.store is not None

    def hold_all(stop):
        with ExitStack() as held:
            for each in list(forks.locks):
                held.enter_context(each)
            stop()

    def child():
        assert torch.equal(compiled(torch.ones(4)), curve(torch.ones(4)))
        assert torch.equal(process.run(make_region(), X, Y)[1], Y - X)
        process.cache.store.sweep()
        assert cache.stats().regions and cache.templates() and process.loaded == [False]
        cache.write_record()
        cache.clear()

    with stopped_halfway(hold_all):
        assert ends_well(child)


def test_what_the_thread_that_forks_holds_it_still_holds():
    mine, other = forks.lock(), forks.lock()

    def taken(lock) -> bool:
        with ThreadPoolExecutor(1) as another:
            return not another.submit(lock.acquire, blocking=False).result()

    def child():
        assert taken(mine) and not taken(other)
        mine.release()
        assert not taken(mine)

    def hold(stop):
        with other:
            stop()

    with stopped_halfway(hold), mine:
        assert taken(mine) and taken(other)
        assert ends_well(child)


def test_a_child_leaves_its_parents_job_alone(monkeypatch):
    used, found = [], "the parent's"
    monkeypatch.setattr(peers, "find_default_store", lambda: found)
    monkeypatch.setattr(peers, "find_job_store", lambda: used.append(found))
    ranks = peers.Ranks()
    ranks.after_fork()
    with ranks.turn(make_numbered_key("key"), "eager") as turn:
        assert turn.artifacts is None
    found = "its own"
    with ranks.turn(make_numbered_key("key"), "eager"):
        assert used == ["its own"]


@pytest.mark.parametrize("before", ["/somewhere", None])
def test_temporary_files_of_a_child_do_not_go_where_nvfuser_opens_its_database(tmp_path, monkeypatch, before):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", before or "")
    if before is None:
        monkeypatch.delenv("TMPDIR")

    def is_as_before():
        assert os.environ.get("TMPDIR") == before

    with stopped_halfway(lambda stop: KernelDatabase().compile(((), ()), stop)):
        assert os.environ["TMPDIR"].startswith(str(tmp_path))
        assert ends_well(is_as_before)
    is_as_before()


def test_all_locks_are_made_in_one_place():
    makes = re.compile(r"\b(Lock|RLock|Condition|Semaphore|BoundedSemaphore|Barrier|register_at_fork)\(")
    makers = [path for path in PACKAGE.rglob("*.py") if makes.search(path.read_text())]
    assert [str(path.relative_to(PACKAGE)) for path in makers] == ["process/forks.py"]


def test_a_child_imports_what_a_thread_of_its_parent_was_importing(tmp_path, monkeypatch):
    (tmp_path / "imported_slowly.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    begun = threading.Event()

    def import_it():
        with forks.imports:
            begun.set()
            __import__("imported_slowly")

    with ThreadPoolExecutor(1) as another:
        another.submit(import_it)
        assert begun.wait(60)
        assert ends_well(lambda: __import__("imported_slowly"))


def test_a_thread_that_imports_for_long_holds_no_fork_up(monkeypatch):
    monkeypatch.setattr(forks, "IMPORT_SECONDS", 0.05)

    def use(stop=lambda: None):
        with forks.imports:
            stop()

    with stopped_halfway(use):
        assert ends_well(use)
    use()  # the parent's state is unchanged
    assert ends_well(use)
