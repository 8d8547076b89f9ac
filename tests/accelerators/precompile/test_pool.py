"""The process pool starts during imports, calls wait for it, and each wait ends if a process dies or hangs."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from pool_processes import fake_compile, fork_process, is_running, make_pool, make_tasks, read_started, wait_until
from repository import HELPERS, import_path
from store_contents import fork, wait_for
from store_processes import fill_store, make_unary_region

import fusioncache
from fusioncache.accelerators.precompile import ahead, workers
from fusioncache.accelerators.precompile import pool as pools
from fusioncache.accelerators.precompile.ahead import PoolHelpers
from fusioncache.accelerators.precompile.entry_compiler import NO_WORKER, EntryCompiler, TaskOutcome
from fusioncache.accelerators.precompile.pool import CompilePool, find_pool, start_default_pool
from fusioncache.accelerators.precompile.warm import Warmed
from fusioncache.cache.peers import StoreRequest
from fusioncache.ir import Key
from fusioncache.process.warning import warn_once
from fusioncache.store import Store, read_through
from fusioncache.store.directory import default_path
from fusioncache.store.entry import FAMILY_SLOTS
from fusioncache.thunder_hook import register_with_thunder

pytestmark = pytest.mark.filterwarnings("ignore:This process")
ENVIRONMENT = {**os.environ, "PYTHONPATH": import_path(HELPERS)}


@pytest.fixture(autouse=True)
def _fake_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "start_process", fork_process)
    monkeypatch.setattr(EntryCompiler, "compile", fake_compile)
    warn_once.cache_clear()


def give_device(monkeypatch: pytest.MonkeyPatch, open_device: Callable[[int | None], object]) -> None:
    """Gives workers a backend that opens its device with this function."""
    backend = type("Other", (), {"open_device": staticmethod(open_device), "prepare": staticmethod(lambda: None)})
    monkeypatch.setattr(workers, "BACKENDS", {"other": None})
    monkeypatch.setattr(workers, "backend_class", lambda name: backend)


def note(path: Path, text: str) -> bool:
    """Appends a text to a file."""
    with path.open("a") as file:
        return file.write(text) > 0


def reasons(pool: CompilePool, *digests: str) -> list[str]:
    """Returns the outcomes of tasks in the order of their answers."""
    return [future.result().reason for future in as_completed(pool.submit(make_tasks(*digests)))]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_worker_that_dies_costs_its_own_task(tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(workers, "is_device_lost", lambda: ("lose the GPU", os.getpid()) in read_started(tmp_path))
    with make_pool(tmp_path, jobs) as pool:
        futures = pool.submit(make_tasks("a", "kill 1 of A", "b of A", "lose the GPU", "c"))
        assert [future.result().reason for future in futures] == ["a", "worker died", "b of A", "worker died", "c"]
        assert reasons(pool, "d") == ["d"]
    assert len(read_started(tmp_path)) == 6
    assert Warmed(2, 0, 0, {"worker died": 2}, 0, 0.0).failed == 2


def test_one_worker_does_all_that_needs_the_same_code(tmp_path, monkeypatch):
    """Other workers do the rest meanwhile."""
    monkeypatch.setattr(workers, "LONG_SECONDS", float("inf"))
    with make_pool(tmp_path, 3) as pool:
        futures = pool.submit(make_tasks("wait go of A", "1 of A", "wait go of B", "2 of B", "3 of A", "rest"))
        assert (futures[-1].result().reason, *reasons(pool, "more")) == ("rest", "more")
        wait_until(lambda: len(read_started(tmp_path)) == 4)
        (tmp_path / "go").touch()
        assert {future.result().reason for future in futures} > {"1 of A", "2 of B", "3 of A"}
        assert reasons(pool, "4 of B") == ["4 of B"]
    started = read_started(tmp_path)
    done = sorted([digest for digest, other in started if other == pid] for pid in {pid for _, pid in started})
    assert done == [["rest", "more"], ["wait go of A", "1 of A", "3 of A"], ["wait go of B", "2 of B", "4 of B"]]


def test_another_worker_does_what_compiles_its_code_again_anyway(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "LONG_SECONDS", 1e-9)
    with make_pool(tmp_path, 2) as pool:
        assert reasons(pool, "1 of A") == ["1 of A"]
        _, other, rest = pool.submit(make_tasks("wait again of A", "2 of A", "rest"))
        assert rest.result().reason == "rest" and not other.done()  # how long code takes at first says nothing
        (tmp_path / "again").touch()
        assert other.result().reason == "2 of A"
        waiting, other = pool.submit(make_tasks("wait go of A", "3 of A"))
        assert other.result().reason == "3 of A" and not waiting.done()
        (tmp_path / "go").touch()
        waiting.result()


def give_room(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> None:
    """Gives workers a GPU that is in use. Its free memory is read as soon as a worker is idle."""
    monkeypatch.setattr(workers, "REST_SECONDS", 0.0)
    monkeypatch.setattr(workers, "gpu_in_use", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", look)


def test_workers_that_keep_code_stay_while_there_is_room(tmp_path, monkeypatch):
    looks, full = tmp_path / "looks", tmp_path / "full"
    monkeypatch.setattr(workers, "STAY_SECONDS", 0.0)
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 240.0)
    give_room(monkeypatch, lambda: (workers.ROOM_BYTES - full.exists(), note(looks, "x")))
    with make_pool(tmp_path, 1) as pool:
        assert reasons(pool, "rest") == ["rest"]
        wait_until(lambda: not is_running(read_started(tmp_path)[0][1]))
        assert reasons(pool, "1 of A") == ["1 of A"]
        wait_until(lambda: looks.exists() and len(looks.read_text()) > 1)
        assert reasons(pool, "2 of A") == ["2 of A"]
        full.touch()
        wait_until(lambda: not is_running(read_started(tmp_path)[2][1]))
        assert reasons(pool, "3 of A") == ["3 of A"]
    _, first, second, third = (pid for _, pid in read_started(tmp_path))
    assert first == second != third


@pytest.mark.parametrize(("room", "stays"), [(0, True), (-1, False), (None, False)])
def test_other_workers_stay_for_a_while_where_there_is_room(tmp_path, monkeypatch, room, stays):
    """Without a GPU they do not."""
    give_room(monkeypatch, lambda: (workers.ROOM_BYTES + room, 0))
    monkeypatch.setattr(workers, "STAY_SECONDS", inf)
    if room is None:
        monkeypatch.setattr(workers, "gpu_in_use", lambda: None)
    with make_pool(tmp_path, 1) as pool:
        assert reasons(pool, "first") == ["first"]
        ((_, pid),) = read_started(tmp_path)
        wait_until(lambda: stays or not is_running(pid))
        assert reasons(pool, "second") == ["second"]
    assert (read_started(tmp_path)[1][1] == pid) == stays


def test_the_longest_task_is_done_first(tmp_path):
    with make_pool(tmp_path, 1) as pool:
        assert reasons(pool, "short", "long", "short, too", "long long") == ["long long", "long", "short", "short, too"]


@pytest.mark.parametrize("signal_", [signal.SIGSTOP, signal.SIGKILL])
def test_workers_that_say_nothing_of_room_are_killed(tmp_path, monkeypatch, signal_):
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.1)
    give_room(monkeypatch, lambda: os.kill(os.getpid(), signal_))
    with make_pool(tmp_path, 2) as pool:
        for number, digest in enumerate(["1 of A", "2 of A"]):
            assert reasons(pool, digest) == [digest]
            wait_until(lambda: not is_running(read_started(tmp_path)[number][1]))  # noqa: B023  # at once


def test_workers_that_hang_are_ended_after_a_while(tmp_path, monkeypatch):
    """As soon as one hangs, the clock advances by an hour at each reading."""
    hours = count(1)

    def read_clock():
        return 3600.0 * next(hours) if any(digest == "hang" for digest, _ in read_started(tmp_path)) else 0.0

    monkeypatch.setattr(workers, "Workers", partial(workers.Workers, clock=read_clock))
    with make_pool(tmp_path, 1) as pool, pytest.warns(RuntimeWarning, match="failed or hung: it compiles alone"):
        assert reasons(pool, "quick") == ["quick"]
        assert reasons(pool, "hang", "after") == ["no worker starts"] * 2
        assert pool.has_failed and reasons(pool, "more") == ["no worker starts"]
    wait_until(lambda: not any(is_running(pid) for _, pid in read_started(tmp_path)))


@pytest.mark.parametrize("dies", [False, True])
def test_workers_that_are_of_no_use_are_not_tried_again(tmp_path, monkeypatch, dies):
    tried = tmp_path / "tried"

    def open_device(number):
        note(tried, "x")
        assert not dies or os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("full")

    give_device(monkeypatch, open_device)
    with make_pool(tmp_path, 2, "other") as pool, pytest.warns(RuntimeWarning, match="failed or hung"):
        if dies:
            pool.open_early(0)
        assert reasons(pool, *"abcd") == ["no worker starts"] * 4
        assert reasons(pool, *"efg") == ["no worker starts"] * 3
    assert 1 <= len(tried.read_text()) <= 2
    monkeypatch.setattr(pools, "start_process", mock.Mock(side_effect=OSError("too many")))
    with make_pool(tmp_path, 2) as pool:
        assert not pool.start() and reasons(pool, "a") == ["no worker starts"]


@pytest.mark.parametrize(("jobs", "room", "expected"), [(2, False, 2), (6, True, 6), (6, False, pools.FEW)])
def test_workers_that_start_early_wait_for_the_first_task(tmp_path, monkeypatch, jobs, room, expected):
    monkeypatch.setattr(workers, "REST_SECONDS", 0.0)
    monkeypatch.setattr(pools, "gpu_in_use", lambda: 0)
    monkeypatch.setattr(pools, "has_room", lambda: room)
    opened = tmp_path / "opened"
    give_device(monkeypatch, lambda number: note(opened, f"{os.getpid()} "))
    with make_pool(tmp_path, jobs, "other") as pool:
        pool.open_early(0)
        wait_until(lambda: opened.exists() and len(opened.read_text().split()) == expected)
        assert reasons(pool, "a") == ["a"] and len(opened.read_text().split()) == expected
    assert {pid for _, pid in read_started(tmp_path)} < set(map(int, opened.read_text().split()))


def test_no_more_workers_open_a_gpu_than_there_are_tasks(tmp_path, monkeypatch):
    opened = tmp_path / "opened"
    give_device(monkeypatch, lambda number: note(opened, "x"))
    with make_pool(tmp_path, 3, "other") as pool:
        assert reasons(pool, "a") == ["a"]
        assert len(opened.read_text()) == 1
        futures = pool.submit(make_tasks("wait go", "wait go, too"))
        wait_until(lambda: len(read_started(tmp_path)) == 3)
        assert len(opened.read_text()) == 2
        (tmp_path / "go").touch()
        (tmp_path / "go,").touch()
        assert [future.result().result for future in futures] == ["refused"] * 2


def test_some_workers_start_early_and_end_without_a_task(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "REST_SECONDS", 0.0)
    opened = tmp_path / "opened"
    give_device(monkeypatch, lambda number: note(opened, f"{os.getpid()} "))
    with make_pool(tmp_path, 3, "other") as pool:
        pool.open_early(0, 2)
        wait_until(lambda: opened.exists() and len(opened.read_text().split()) == 2)
        wait_until(lambda: not any(map(is_running, map(int, opened.read_text().split()))))
        assert reasons(pool, "a") == ["a"] and len(opened.read_text().split()) == 3


def test_few_workers_open_a_gpu_at_once_while_tasks_wait(tmp_path, monkeypatch):
    opened = tmp_path / "opened"
    give_device(monkeypatch, lambda number: [note(opened, "+"), time.sleep(0.05), note(opened, "-")])
    with make_pool(tmp_path, 6, "other") as pool:
        futures = pool.submit(make_tasks(*(f"wait go {number}" for number in range(6))))
        wait_until(lambda: len(read_started(tmp_path)) == 6)
        (tmp_path / "go").touch()
        assert all(future.result() for future in futures)
    marks = opened.read_text()
    assert max(2 * marks[:end].count("+") - end for end in range(len(marks))) == workers.OPENING


def test_a_process_that_hangs_is_killed_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "END_SECONDS", 0.2)
    with make_pool(tmp_path, 1) as pool:
        assert reasons(pool, "a") == ["a"]
        os.kill(pool.pid, signal.SIGSTOP)
        (future,) = pool.submit(make_tasks("b"))
        pool.end()
        assert future.result().reason == "no worker starts"


def test_a_pool_is_ended_where_no_thread_can_be_started(tmp_path, monkeypatch):
    with make_pool(tmp_path, 1) as late, make_pool(tmp_path, 1) as never:
        assert reasons(late, "a") == ["a"]
        monkeypatch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        assert reasons(late, "b") == reasons(never, "c") == ["no worker starts"]
        assert (never.has_failed, never.pid) == (True, None)


def test_a_forked_child_leaves_the_pool_to_its_parent(tmp_path):
    with make_pool(tmp_path, 1) as pool:
        (future,) = pool.submit(make_tasks("wait go"))

        def child():
            assert pool.submit(make_tasks("the child's"))[0].result().reason == "no worker starts"
            pool.end()

        assert wait_for(fork(child)) == 0
        (tmp_path / "go").touch()
        assert future.result().reason == "wait go"


_OWNER = """
import sys, time
from pathlib import Path
from pool_processes import fork_process, make_tasks, fake_compile, read_started, wait_until
from fusioncache.accelerators.precompile import pool
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler
pool.start_process, EntryCompiler.compile = fork_process, fake_compile
directory = Path(sys.argv[1])
made = pool.CompilePool(directory / "store", 2, "")
made.submit(make_tasks("wait for ever 0", "wait for ever 1"))
print(made.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["wait_until(lambda: False)", "wait_until(lambda: len(read_started(directory)) == 2)"])
def test_nothing_is_left_of_a_process_that_is_killed_or_ends(tmp_path, end):
    command = [sys.executable, "-W", "ignore", "-c", _OWNER.format(end=end), str(tmp_path)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as owner:
        children = [int(owner.stdout.readline())]
        wait_until(lambda: len(read_started(tmp_path)) == 2)
        children += [pid for _, pid in read_started(tmp_path)]
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


@pytest.fixture
def gpu_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulates a process with an open GPU, cores for two workers and an empty store."""
    monkeypatch.setattr(pools, "gpu_in_use", lambda: 0)
    monkeypatch.setattr(pools, "find_spec", lambda name: name)
    monkeypatch.setattr(CompilePool, "open_early", lambda self, *_: None)
    monkeypatch.setenv("FUSIONCACHE_JOBS", "2")
    monkeypatch.delenv("FUSIONCACHE_STORE")
    yield
    for made in pools.pools.values():
        made.end()
    pools.pools.clear()


@pytest.mark.parametrize(
    ("jobs", "backend", "variable"),
    [
        (2, "nvfuser", "CUDA_MODULE_LOADING"),
        (3, "nvfuser", "CUDA_MODULE_LOADING"),
        (2, "inductor", "CUDA_MODULE_LOADING"),
        (2, "nvfuser", "PYTORCH_NVML_BASED_CUDA_CHECK"),
        (2, "nvfuser", "CUDA_VISIBLE_DEVICES"),
        (2, "nvfuser", "NVFUSER_ENABLE"),
        (2, "nvfuser", "FUSIONCACHE_TRUST"),
    ],
)
def test_the_first_cache_gets_the_pool_that_was_started_or_ends_it(gpu_process, monkeypatch, jobs, backend, variable):
    """The pool also ends if it was started with other variables, except for those that torch and Lightning set."""
    start_default_pool()
    (first,) = pools.pools.values()
    assert first.pid is not None and not first.is_wanted
    monkeypatch.setenv(variable, "1")
    found = find_pool(Store.open(), jobs, backend)
    assert found is not None and found.is_wanted and (found.jobs, found.backend) == (jobs, backend)
    fits = (jobs, backend) == (2, "nvfuser") and not variable.startswith(("CUDA_V", "NV", "FUSION"))
    assert (found is first) == (not first.has_failed) == fits
    assert find_pool(Store.open(), jobs + 1, backend) is found  # also for a cache with other options


def test_a_pool_that_dies_before_a_cache_asks_is_made_anew(gpu_process, recwarn):
    start_default_pool()
    (made,) = pools.pools.values()
    os.kill(made.pid, signal.SIGKILL)
    wait_until(lambda: made.pid is None)
    found = find_pool(Store.open(), 2, "nvfuser")
    assert found is not made and not found.has_failed
    assert not [warning for warning in recwarn if "it compiles alone" in str(warning.message)]


def test_a_pool_that_the_first_transform_does_without_is_ended(gpu_process):
    start_default_pool()
    (made,) = pools.pools.values()
    fusioncache.FusionCache(cache=fusioncache.Cache(store=False), jobs=0)
    assert not made.has_failed
    fusioncache.FusionCache(cache=fusioncache.Cache(record=False), jobs=0)
    assert made.has_failed
    found = find_pool(Store.open(), 2, "nvfuser")
    assert found is not made
    fusioncache.FusionCache(cache=fusioncache.Cache(record=False), jobs=0)
    assert found is not None and not found.has_failed


def test_what_starts_beside_the_import_makes_no_store_and_asks_no_remote(gpu_process, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_REMOTE", "http://localhost:1")
    monkeypatch.setattr(read_through, "ReadThrough", mock.Mock())
    start_default_pool()
    assert len(pools.pools) == 1 and not default_path().exists()
    fill_store(default_path())
    read_through.ReadThrough.reset_mock()
    start_default_pool()
    read_through.ReadThrough.assert_not_called()
    assert find_pool(Store.open(), 2, "nvfuser") in pools.pools.values() and len(pools.pools) == 1


STORES = {
    "nothing": lambda store: None,
    "code for one length": lambda store: fill_store(store.directory),
    "programs of several lengths": lambda store: store.save(Key("f" * 64, "", ()), FAMILY_SLOTS[0], {"family": b""}),
}


def give_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a process that may open a GPU, but has not."""
    monkeypatch.setattr(pools, "gpu_in_use", lambda: None)
    monkeypatch.setattr(pools, "GPU_FILES", (os.devnull,))
    monkeypatch.delitem(sys.modules, "fusioncache.cli.main", raising=False)


@pytest.mark.parametrize("was_open", [False, True])
def test_a_pool_that_was_started_beside_the_import_opens_a_gpu_when_a_cache_asks(gpu_process, monkeypatch, was_open):
    opened = []
    monkeypatch.setattr(CompilePool, "open_early", lambda self, device, *_: opened.append(device))
    if not was_open:
        give_no_gpu(monkeypatch)
    start_default_pool()
    assert len(pools.pools) == 1 and not opened
    monkeypatch.setattr(pools, "gpu_in_use", lambda: 3)
    for _ in range(2):
        assert find_pool(Store.open(), 2, "nvfuser") is pools.pools[Store.open().directory]
    assert opened == [3]


_WITH_CHILDREN = """
from multiprocessing import get_context
from fusioncache.accelerators.precompile import pool
pool.GPU_FILES = (pool.os.devnull,)
may_train = pool._is_likely_to_train()
if __name__ == "__main__":
    print(may_train)
    for method in ("spawn", "forkserver"):
        with get_context(method).Pool(1) as children:
            print(children.apply(eval, ["__import__('__main__').may_train"]))
"""


def test_children_that_import_the_script_once_more_start_none(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_WITH_CHILDREN)
    environment = {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]


NONE = {
    "no jobs": lambda patch: patch.setenv("FUSIONCACHE_JOBS", "0"),
    "jobs that are no number": lambda patch: patch.setenv("FUSIONCACHE_JOBS", "some"),
    "no store": lambda patch: patch.setenv("FUSIONCACHE_STORE", "0"),
    "verify mode": lambda patch: patch.setenv("FUSIONCACHE_VERIFY", "1"),
    "another accelerator": lambda patch: patch.setenv("FUSIONCACHE_ACCELERATORS", "programs,tracing"),
    "no GPU": lambda patch: (give_no_gpu(patch), patch.setattr(pools, "GPU_FILES", ("nowhere",))),
    "no GPU that is visible": lambda patch: (give_no_gpu(patch), patch.setenv("CUDA_VISIBLE_DEVICES", "")),
    "a child": lambda patch: (give_no_gpu(patch), patch.setattr(pools, "parent_process", lambda: "loads data")),
    "a command": lambda patch: (give_no_gpu(patch), patch.setitem(sys.modules, "fusioncache.cli.main", None)),
    "no nvFuser": lambda patch: patch.setattr(pools, "find_spec", lambda name: None),
    "few cores": lambda patch: (
        patch.delenv("FUSIONCACHE_JOBS"),
        patch.setattr(pools, "count_cores", lambda: 2),
    ),
    "a store that others can write": lambda patch: (default_path().mkdir(parents=True), default_path().chmod(0o777)),
}


@pytest.mark.parametrize("change", NONE.values(), ids=NONE)
def test_none_starts_with(gpu_process, monkeypatch, recwarn, change):
    """Problems are reported when a cache asks for a pool."""
    change(monkeypatch)
    start_default_pool()
    assert not pools.pools and not recwarn.list


@pytest.mark.parametrize(
    ("backend", "kept", "starts"),
    [
        ("nvfuser", "nothing", True),
        ("nvfuser", "code for one length", False),
        ("nvfuser", "programs of several lengths", True),
        ("inductor", "programs of several lengths", False),  # its code for any sizes is stored
    ],
)
def test_a_pool_starts_at_once_where_a_call_is_likely_to_wait_for_it(gpu_process, backend, kept, starts):
    STORES[kept](Store.open())
    found = find_pool(Store.open(), 2, backend, waits=True)
    assert found is not None and (found.pid is not None) == starts
    found.end()
    pools.pools.clear()
    start_default_pool()  # for nvFuser
    assert bool(pools.pools) == (kept != "code for one length")


def test_it_starts_as_soon_as_thunder_and_the_package_are_imported(monkeypatch):
    started = mock.Mock()
    monkeypatch.setattr(pools, "start_default_pool", started)
    register_with_thunder()
    started.assert_called_once_with()


@pytest.mark.parametrize(("device", "room", "opened"), [(0, True, [(0, 2)]), (0, False, []), (None, True, [])])
def test_two_workers_open_a_gpu_with_room_before_a_program_is_made(tmp_path, monkeypatch, device, room, opened):
    pool, found = make_waiting_pool(), []
    pool.open_early = lambda *arguments: found.append(arguments)
    monkeypatch.setattr(ahead, "gpu_in_use", lambda: device)
    monkeypatch.setattr(ahead, "has_room", lambda: room)
    PoolHelpers(Store.open(tmp_path), pool).get_ready()
    assert found == opened


def make_waiting_pool():
    """Returns a fake pool, whose tasks end when the test sets their results."""
    tasks = []

    def submit(given):
        futures = [Future() for _ in given]
        tasks.extend(futures)
        return futures

    return SimpleNamespace(jobs=2, has_failed=False, answered=0.0, start=lambda: True, submit=submit, tasks=tasks)


def make_request(number=0, as_general=None):
    request = SimpleNamespace(backend="inductor", graph=make_unary_region())
    return StoreRequest(Key(str(number), "", ()), request, None, as_general)


def test_a_call_waits_for_code_that_no_worker_has_begun_to_make(tmp_path, monkeypatch):
    """Meanwhile it compiles another region, but none that is derived from general code."""
    made, other, alone = make_request(0, "A"), make_request(1, "A"), make_request(2)
    pool, compiled = make_waiting_pool(), []

    def compile_here(self, task):
        compiled.append(task.digest)
        pool.tasks[0].set_result(TaskOutcome("compiled"))
        return TaskOutcome("compiled")

    monkeypatch.setattr(EntryCompiler, "compile", compile_here)
    helpers = PoolHelpers(Store.open(tmp_path), pool)
    helpers.hand_over([made, other, alone])
    assert helpers.wait_for(made.key).by_helper and compiled == [alone.key.digest]


def test_a_pool_is_given_up_when_it_has_finished_nothing_for_long(tmp_path, monkeypatch):
    request, pool, end = make_request(0, "A"), make_waiting_pool(), mock.Mock()
    pool.answered, pool.end = inf, lambda: end(pool.answered)
    monkeypatch.setattr(ahead, "wait", lambda futures, seconds: setattr(pool, "answered", 0.0))
    monkeypatch.setattr(ahead, "WAIT_SECONDS", -1.0)
    helpers = PoolHelpers(Store.open(tmp_path), pool)
    helpers.hand_over([request])
    helpers.wait_for(request.key)
    end.assert_called_once_with(0.0)


def test_what_calls_wait_for_comes_before_lengths_to_come():
    requests, pool, done = [make_request(number) for number in range(8)], make_waiting_pool(), []
    helpers = PoolHelpers(SimpleNamespace(entry=lambda *of: None), pool)
    helpers.hand_over(requests[:1])
    assert helpers.hand_over_later(requests, lambda: done.append(1)) == len(requests) - 1
    assert len(pool.tasks) == 1  # a call waits for this one
    pool.tasks[0].set_result(TaskOutcome("compiled"))
    assert len(pool.tasks) == 3  # then one for each worker
    pool.tasks[1].set_result(TaskOutcome("refused", "other settings here"))
    assert len(pool.tasks) == 4 and len(done) == 1
    helpers.hand_over(requests[-1:])
    assert len(pool.tasks) == 5
    pool.tasks[2].set_result(TaskOutcome("compiled"))
    assert len(pool.tasks) == 5 and len(done) == 2
    pool.tasks[4].set_result(NO_WORKER)
    pool.tasks[5].set_result(NO_WORKER)
    assert len(pool.tasks) == 6  # no worker starts, so nothing more is handed over
