"""Workers compile during tracing: each template is compiled once, by one process, and no result changes."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from compared_models import are_equal, train
from models import Small, compile_with
from pool_processes import fork_process, wait_until
from store_processes import PersistentEager

import fusioncache
from fusioncache.accelerators.precompile import ahead, pool
from fusioncache.accelerators.precompile.ahead import PoolHelpers
from fusioncache.backends.api import Run
from fusioncache.ir import Graph
from fusioncache.observe.record.stats import Stats

pytestmark = pytest.mark.filterwarnings("ignore:This process")


class Logging(PersistentEager):
    """Writes a line for each compilation of any process: the process and the graph."""

    folder = Path()
    before: Callable[[Graph], object] = staticmethod(lambda graph: None)

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        with (self.folder / "compiled").open("a") as file:
            file.write(json.dumps([os.getpid(), str(graph)]) + "\n")
        type(self).before(graph)
        return super().compile(graph, args)


@pytest.fixture(scope="module", autouse=True)
def _logging() -> Iterator[None]:
    """Makes every process compile with the logging backend, and pools consist of forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "LOOK_SECONDS", 60.0)  # news of a worker may be late on a busy machine
        patch.setattr(ahead, "backend_class", lambda name: Logging)
        for module in ("transform.shared_region", "accelerators.precompile.entry_compiler"):
            patch.setattr(f"fusioncache.{module}.make_backend", lambda name, **options: Logging())
        patch.setattr(pool, "start_process", fork_process)
        yield


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Logging, "folder", tmp_path)
    yield
    end_pools()  # before a test's patches are undone


def end_pools() -> None:
    for made in pool.pools.values():
        made.end()
    pool.pools.clear()


def read(folder: Path) -> tuple[list[int], Counter[str]]:
    """Returns the process of each compilation, and how often each graph was compiled."""
    file = folder / "compiled"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [process for process, _ in lines], Counter(graph for _, graph in lines)


class Job:
    def __init__(self, folder: Path, number: int):
        torch.manual_seed(0)
        self.x, self.cache = torch.randn(5, 16), fusioncache.Cache(record=False, store=folder / "store")
        self.compiled, self.transform = compile_with(Small(), cache=self.cache, backend="eager", jobs=number)

    def when_traced(self, act: Callable[[], object]) -> None:
        hook = self.transform.transform_trace_post_optimization

        def traced(trace: Any, **options: Any) -> Any:
            result = hook(trace, **options)
            if "backward" in str(trace.tags).lower():
                act()
            return result

        self.transform.transform_trace_post_optimization = traced  # type: ignore[method-assign]

    def run(self) -> list[Any]:
        return train(self.compiled, self.x)

    def wait(self) -> None:
        assert isinstance(self.cache.helpers, PoolHelpers)
        wait_until(lambda: all(future.done() for _, future in self.cache.helpers._tasks.values()))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Mapping[str, int]]:
    alone = Logging.folder = tmp_path_factory.mktemp("alone")
    return Job(alone, 0).run(), read(alone)[1]


def check_compiled_beside(job: Job, folder: Path, expected: tuple[list[Any], Mapping[str, int]]) -> Stats:
    """Asserts that a step has the results of one without workers, and that workers compiled everything."""
    assert are_equal(job.run(), expected[0])
    stats, (processes, graphs) = job.transform.stats(), read(folder)
    assert graphs == expected[1] and os.getpid() not in processes
    assert stats.handed_over == stats.helped == stats.loads == len(graphs) and not stats.compiles
    assert not stats.bypasses and not stats.unkept
    return stats


def test_all_that_calls_ask_for_is_compiled_beside(tmp_path, expected):
    job = Job(tmp_path, 2)
    job.when_traced(job.wait)
    check_compiled_beside(job, tmp_path, expected)


def test_what_a_loaded_program_misses_is_compiled_beside(tmp_path, monkeypatch, expected):
    Job(tmp_path, 1).run()
    end_pools()  # its worker may have tasks left, which it would do again without their entries
    for entry in (tmp_path / "store").glob("entries/*/*.eager"):
        entry.unlink()
    (tmp_path / "compiled").unlink()
    job, hand_over = Job(tmp_path, 2), PoolHelpers.hand_over
    monkeypatch.setattr(PoolHelpers, "hand_over", lambda self, requests: (hand_over(self, requests), job.wait())[0])
    stats = check_compiled_beside(job, tmp_path, expected)
    assert (stats.programs_loaded, stats.programs_made) == (1, 0)


def test_what_no_worker_has_begun_is_compiled_here_and_what_one_is_at_is_waited_for(tmp_path, monkeypatch, expected):
    """There is one worker, which ends its first task only after this process has compiled another one."""
    here = os.getpid()

    def before(graph: Graph) -> None:
        if os.getpid() != here:
            wait_until(lambda: here in read(tmp_path)[0])

    monkeypatch.setattr(Logging, "before", staticmethod(before))
    job = Job(tmp_path, 1)
    job.when_traced(lambda: wait_until(lambda: read(tmp_path)[0]))
    assert are_equal(job.run(), expected[0])
    stats, (processes, graphs) = job.transform.stats(), read(tmp_path)
    assert graphs == expected[1]
    assert stats.compiles == processes.count(here) > 0 < stats.helped


def test_what_was_made_under_other_settings_is_not_taken(tmp_path, monkeypatch, expected):
    """Settings change when all is compiled, before the first call: calls then ask for other entries."""
    setting, own = {"machine": "here"}, Logging.environment
    monkeypatch.setattr(Logging, "environment", lambda self: {**own(self), "settings": str(setting)})
    job = Job(tmp_path, 2)

    def change() -> None:
        job.wait()
        setting["machine"] = "elsewhere"

    job.when_traced(change)
    assert are_equal(job.run(), expected[0])
    stats, (processes, graphs) = job.transform.stats(), read(tmp_path)
    assert stats.handed_over == stats.compiles == processes.count(os.getpid()) == len(expected[1])
    assert not stats.helped and not stats.loads
    assert set(graphs.values()) == {2}


def test_processes_start_where_a_program_is_derived_and_not_where_it_is_loaded(tmp_path):
    first = Job(tmp_path, 2)
    (made,) = pool.pools.values()
    assert made.pid is not None  # at once: there is nothing in the store
    first.run()
    end_pools()
    second = Job(tmp_path, 2)
    (made,) = pool.pools.values()
    second.run()
    assert second.transform.stats().programs_loaded == 1
    assert made.pid is None
    with torch.no_grad():
        second.run()
    assert second.transform.stats().programs_made == 1
    assert made.pid is not None


@pytest.mark.parametrize(
    ("cores", "ranks", "backend", "expected"),
    [
        (2, "", "nvfuser", 0),
        (16, "", "nvfuser", 7),
        (64, "", "nvfuser", 8),
        (32, "4", "nvfuser", 3),
        (8, "", "inductor", 1),
        (16, "no number", "inductor", 3),
        (64, "", "eager", 0),
    ],
)
def test_there_are_as_many_as_pay_or_as_were_asked_for(monkeypatch, cores, ranks, backend, expected):
    monkeypatch.delenv("FUSIONCACHE_JOBS")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(pool, "count_cores", lambda: cores)
    assert pool.choose_jobs(None, backend) == expected
    monkeypatch.setenv("FUSIONCACHE_JOBS", "3")
    assert (pool.choose_jobs(None, backend), pool.choose_jobs(5, backend), pool.choose_jobs(0, backend)) == (3, 5, 0)
    monkeypatch.setattr(pool, "can_have_pool", lambda: False)
    assert pool.choose_jobs(5, backend) == 0


def test_no_process_starts_that_would_not_pay(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_JOBS", "")
    monkeypatch.setattr(pool, "count_cores", lambda: 64)
    monkeypatch.setattr(pool, "start_process", lambda *args, **options: pytest.fail("a process was started"))
    kept = fusioncache.Cache(record=False, store=tmp_path / "store")
    fusioncache.FusionCache(cache=kept, backend="inductor", verify=True)
    fusioncache.FusionCache(cache=kept, backend="eager")
    fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), backend="inductor", jobs=4)
    assert not pool.pools
