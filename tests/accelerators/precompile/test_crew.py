"""A crew: what is handed over has an answer, and nobody waits for one for ever, whatever dies or hangs."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crew_processes import (
    WAIT,
    ForkedModule,
    fork_module,
    is_running,
    make_crew,
    play,
    read_played,
    wait_until,
)
from repository import HELPERS, PACKAGE, import_path
from store_contents import fork, wait_for

from fusioncache.accelerators.precompile import crew as crews
from fusioncache.accelerators.precompile import link, nursery, worker
from fusioncache.accelerators.precompile.backlog import Backlog
from fusioncache.accelerators.precompile.crew import Crew, iterate_answers
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler
from fusioncache.accelerators.precompile.tasks import EntryTask

pytestmark = pytest.mark.filterwarnings("ignore:This process")


@pytest.fixture(autouse=True)
def _play(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the nursery may take a while to answer."""
    for module in (link, nursery):
        monkeypatch.setattr(module, "start_module", fork_module)
    monkeypatch.setattr(EntryCompiler, "compile", play)
    monkeypatch.setattr(crews, "ANSWER_SECONDS", WAIT)


def give_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Gives the nurseries of crews, which are forks of this process, another clock."""
    monkeypatch.setattr(nursery, "Nursery", partial(nursery.Nursery, clock=clock))


def reasons(crew: Crew, *ids: str) -> list[str]:
    """What becomes of entries, in order of the answers. The first one is the heaviest."""
    numbers = [crew.hand_over(EntryTask(id_, -number)) for number, id_ in enumerate(ids)]
    return [answer.outcome.reason for answer in iterate_answers(crew, numbers)]


def test_the_heaviest_leaves_first_and_what_was_taken_never():
    backlog = Backlog()
    for number, weight in enumerate([1.0, 3.0, 3.0, 2.0]):
        backlog.add(number, weight, f"task {number}")
    assert backlog.take(1) and not backlog.take(1)
    assert [backlog.take_heaviest() for _ in range(4)] == [(2, "task 2"), (3, "task 3"), (0, "task 0"), None]
    backlog.add(4, 0.0, "task 4")
    assert len(backlog) == 1 and backlog.take_all() == [4] and not backlog


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "started anew"])
def test_every_task_has_an_answer(tmp_path, fork):
    ids = [f"entry {number}" for number in range(20)]
    with make_crew(tmp_path, 2, fork=fork) as crew:
        assert sorted(reasons(crew, *ids)) == sorted(ids)
    assert 1 <= len({pid for _, pid in read_played(tmp_path)}) <= 2


def test_tasks_that_a_pipe_cannot_hold(tmp_path):
    ids = [f"{number} {'x' * 300_000}" for number in range(5)]
    with make_crew(tmp_path, 1) as crew:
        assert reasons(crew, *ids) == ids


def test_a_worker_that_dies_costs_one_task(tmp_path):
    with make_crew(tmp_path, 1) as crew:
        assert reasons(crew, "a", "kill 1", "b", "kill 2", "c") == ["a", "worker died", "b", "worker died", "c"]
    assert len({pid for _, pid in read_played(tmp_path)}) == 3


def test_a_worker_that_hangs_is_ended_after_a_while(tmp_path, monkeypatch):
    """An hour passes as soon as it hangs."""
    give_clock(monkeypatch, lambda: 3600.0 * any(id_ == "hang" for id_, _ in read_played(tmp_path)))
    with make_crew(tmp_path, 1) as crew:
        assert reasons(crew, "quick", "hang", "after") == ["quick", "worker died", "after"]
    assert not any(is_running(pid) for _, pid in read_played(tmp_path))


def test_workers_that_are_of_no_use_are_not_tried_for_every_task(tmp_path, monkeypatch):
    """A device that is full, say."""
    tried = tmp_path / "tried"

    def open_device(number):
        with tried.open("a") as file:
            file.write("x")
        raise MemoryError("full")

    monkeypatch.setattr(worker, "BACKENDS", {"": None})
    backend = type("Full", (), {"open_device": staticmethod(open_device), "prepare": staticmethod(lambda: None)})
    monkeypatch.setattr(worker, "backend_class", lambda name: backend)
    with make_crew(tmp_path, 2) as crew:
        assert reasons(crew, *"abcd") == ["no worker starts"] * 4
    assert tried.read_text() == "xx"


def test_no_process_at_all(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError("too many")

    monkeypatch.setattr(link, "start_module", refuse)
    with make_crew(tmp_path, 2) as crew:
        assert not crew.start() and crew.hand_over(EntryTask("a")) is None
        assert reasons(crew, "a") == ["no worker starts"]


def test_what_nobody_has_begun_is_taken_back_and_what_somebody_is_at_is_waited_for(tmp_path):
    with make_crew(tmp_path, 1) as crew:
        first, second = crew.hand_over(EntryTask("wait go", 2.0)), crew.hand_over(EntryTask("never"))
        wait_until(lambda: read_played(tmp_path))
        assert crew.take(second) is None
        (tmp_path / "go").touch()
        assert crew.take(first).outcome.reason == "wait go"
        assert crew.take(first) is None  # it is asked once
    assert [id_ for id_, _ in read_played(tmp_path)] == ["wait go"]


def test_what_is_taken_back_before_anybody_can_begin_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "prepare", lambda backend: wait_until((tmp_path / "go").exists))
    with make_crew(tmp_path, 1) as crew:
        number = crew.hand_over(EntryTask("never"))
        assert crew.take(number) is None
        (tmp_path / "go").touch()
        assert reasons(crew, "another") == ["another"]
    assert [id_ for id_, _ in read_played(tmp_path)] == ["another"]


def test_workers_end_when_their_owner_has_all_and_others_start_when_it_wants_more(tmp_path):
    with make_crew(tmp_path, 1) as crew:
        for id_ in ("one", "two"):
            number = crew.hand_over(EntryTask(id_))
            wait_until(lambda number=number: not crew.waiting())
            assert crew.take(number).outcome.reason == id_
            wait_until(lambda: not is_running(read_played(tmp_path)[-1][1]))
    assert len({pid for _, pid in read_played(tmp_path)}) == 2


def test_workers_that_start_early_wait_for_the_first_task(tmp_path, monkeypatch):
    monkeypatch.setattr(nursery, "REST_SECONDS", 0.0)
    monkeypatch.setattr(nursery, "TICK", 0.02)
    opened, looks = tmp_path / "opened", tmp_path / "looks"

    def look():
        """Tells the time, and leaves a trace of that."""
        with looks.open("a") as file:
            file.write("x")
        return time.monotonic()

    give_clock(monkeypatch, look)
    monkeypatch.setattr(worker, "prepare", lambda backend: None)
    monkeypatch.setattr(worker, "BACKENDS", {"": None})
    backend = type("Slow", (), {"open_device": staticmethod(lambda number: opened.open("a").write(f"{os.getpid()} "))})
    monkeypatch.setattr(worker, "backend_class", lambda name: backend)
    with make_crew(tmp_path, 2, early=True) as crew:
        crew.start()
        wait_until(lambda: opened.exists() and len(opened.read_text().split()) == 2)
        before = looks.stat().st_size
        wait_until(lambda: looks.stat().st_size > before + 20)
        assert reasons(crew, "a") == ["a"]
    assert {pid for _, pid in read_played(tmp_path)} < set(map(int, opened.read_text().split()))


def test_workers_that_idle_end_and_so_does_their_nursery(tmp_path, monkeypatch):
    monkeypatch.setattr(nursery, "REST_SECONDS", 0.0)
    monkeypatch.setattr(nursery, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(nursery, "TICK", 0.05)
    started: list[ForkedModule] = []
    monkeypatch.setattr(link, "start_module", lambda *a, **o: started.append(fork_module(*a, **o)) or started[-1])
    with make_crew(tmp_path, 1) as crew:
        crew.start()
        wait_until(lambda: started[0].poll() == 0)
        wait_until(lambda: crew.hand_over(EntryTask("a")) is not None and len(started) == 2)
    assert started[0].returncode == 0


def test_a_nursery_that_is_killed_leaves_no_worker_and_nobody_waiting(tmp_path):
    with make_crew(tmp_path, 2) as crew:
        numbers = [crew.hand_over(EntryTask(f"wait for ever {number}")) for number in range(2)]
        wait_until(lambda: len(read_played(tmp_path)) == 2)
        os.kill(crew.pid, signal.SIGKILL)
        assert [crew.take(number).outcome.reason for number in numbers] == ["no worker starts"] * 2
        wait_until(lambda: not any(is_running(pid) for _, pid in read_played(tmp_path)))
        assert crew.over and crew.hand_over(EntryTask("a")) is None


def test_a_nursery_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "END_SECONDS", 0.2)
    with make_crew(tmp_path, 1) as crew:
        assert reasons(crew, "a") == ["a"]
        os.kill(crew.pid, signal.SIGSTOP)
        monkeypatch.setattr(crews, "ANSWER_SECONDS", 0.0)
        number = crew.hand_over(EntryTask("b"))
        answer = crew.take(number)
        assert answer is None or answer.outcome.result == "refused"
        wait_until(lambda: crew.over)


def test_a_forked_child_leaves_the_crew_to_its_parent(tmp_path):
    with make_crew(tmp_path, 1) as crew:
        number = crew.hand_over(EntryTask("wait go"))

        def child():
            assert crew.take(number) is None and crew.hand_over(EntryTask("the child's")) is None
            crew.end()

        assert wait_for(fork(child)) == 0
        (tmp_path / "go").touch()
        assert reasons(crew, "more") == ["more"]


_OWNER = """
import sys, time
from pathlib import Path
from crew_processes import play, read_played, wait_until
from fusioncache.accelerators.precompile.crew import Crew
from fusioncache.accelerators.precompile.tasks import EntryTask
{start}
directory = Path(sys.argv[1])
crew = Crew(directory / "store", 2, "")
for number in range(2):
    crew.hand_over(EntryTask(f"wait for ever {{number}}"))
print(crew.pid, flush=True)
{end}
"""
_FORKS = """
from crew_processes import fork_module
from fusioncache.accelerators.precompile import link
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler
link.start_module, EntryCompiler.compile = fork_module, play
"""


@pytest.mark.parametrize("end", ["wait_until(lambda: False)", "wait_until(lambda: len(read_played(directory)) == 2)"])
def test_nothing_is_left_of_a_process_that_is_killed_or_ends(tmp_path, end):
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    program = _OWNER.format(start=_FORKS, end=end)
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        children = [int(owner.stdout.readline())]
        wait_until(lambda: len(read_played(tmp_path)) == 2)
        children += [pid for _, pid in read_played(tmp_path)]
        if "False" in end:
            owner.kill()
    assert owner.returncode == (-signal.SIGKILL if "False" in end else 0)
    wait_until(lambda: not any(map(is_running, children)))


def test_nothing_needs_shared_memory():
    def imports(path: Path) -> set[str]:
        nodes = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        return {
            name for node in nodes for name in [getattr(node, "module", None), *(a.name for a in node.names)] if name
        }

    used = set().union(*map(imports, (PACKAGE / "precompile").glob("*.py")))
    assert not {name for name in used if name.split(".")[0] in ("multiprocessing", "mmap", "concurrent")}
