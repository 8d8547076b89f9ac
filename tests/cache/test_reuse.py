"""A function of a general size gives way to one of its own size: when, and when not."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from fusioncache.backends.api import Run
from fusioncache.cache import backend_executables
from fusioncache.cache.backend_executables import OFTEN, Order, prepare_capture, replace_if_reused


def make_run(name: str) -> Run:
    return lambda args: [name]


@dataclass
class Pool:
    """Compiles beside this process, and is done when a test says so."""

    made: Run | None = field(default_factory=lambda: make_run("own"))
    done: bool = False
    takes_orders: bool = True
    fails: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, question: str, answer: object) -> object:
        self.asked.append(question)
        if question == self.fails:
            raise ValueError(question)
        return answer

    def run(self, **options) -> Run:
        order = Order(
            lambda: self.answer("place", self.takes_orders),
            lambda: self.answer("is done", self.done),
            lambda args: self.answer("fetch", self.made),
            lambda args: self.answer("build", make_run("own")),
            lambda args: self.answer("build apart", make_run("apart")),
            **options,
        )
        return replace_if_reused(make_run("general"), order)


@pytest.fixture
def capturing(monkeypatch):
    """Has code believe that a CUDA graph is captured while the list is not empty."""
    captures: list[str] = []
    monkeypatch.setattr(backend_executables, "is_capturing", lambda: bool(captures))
    return captures


def call(run: Run, times: int) -> Sequence[str]:
    return [run([])[0] for _ in range(times)][-1]


def prepared(run: Run) -> tuple[str, int]:
    """Returns what the call before a capture gives, and how many regions of it have to be waited for."""
    with prepare_capture() as unsettled:
        return run([])[0], len(unsettled)


def test_a_size_that_is_used_often_gets_its_own():
    pool = Pool()
    run = pool.run()
    assert call(run, OFTEN - 1) == "general" and not pool.asked
    assert call(run, 300) == "general" and pool.asked[0] == "place" and pool.asked.count("place") == 1
    pool.done = True
    assert call(run, 30) == "own"
    asked = len(pool.asked)
    assert call(run, 3 * OFTEN) == "own" and len(pool.asked) == asked
    assert pool.asked.count("fetch") == 1


@pytest.mark.parametrize(
    ("pool", "asked"),
    [
        (Pool(made=None, done=True), ["place", "is done", "fetch"]),
        (Pool(takes_orders=False), ["place"]),
        (Pool(done=True, fails="fetch"), ["place", "is done", "fetch"]),
    ],
    ids=["nothing was made", "takes no orders", "fails"],
)
def test_without_a_compiled_function_nothing_changes_and_is_not_asked_again(pool, asked):
    assert call(pool.run(), 5 * OFTEN) == "general"
    assert pool.asked == asked


@pytest.mark.parametrize("captures", [True, False])
def test_deterministic_algorithms_keep_the_general_function(captures):
    run = Pool(done=True).run(captures=captures)
    torch.use_deterministic_algorithms(True)
    try:
        assert call(run, 3 * OFTEN) == "general"
        assert prepared(run) == ("general", 0 if captures else 1)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_call_before_a_capture_compiles_here_without_a_pool():
    pool = Pool(takes_orders=False)
    run = pool.run(captures=False)
    assert call(run, 1) == "general"
    assert [prepared(run) for _ in range(2)] == [("own", 0)] * 2
    assert pool.asked.count("build") == 1
    assert call(run, 3 * OFTEN) == "own"
    assert prepared(Pool(takes_orders=False, fails="build").run(captures=False)) == ("general", 1)


def test_the_call_before_a_capture_waits_for_the_pool():
    pool = Pool()
    run = pool.run(captures=False)
    assert [prepared(run) for _ in range(3)] == [("general", 1)] * 3
    assert pool.asked.count("place") == 1 and "build" not in pool.asked
    pool.done = True
    assert prepared(run) == ("own", 0)


def test_a_capture_never_meets_the_general_function(capturing):
    pool = Pool()
    run = pool.run(captures=False)
    capturing.append("a graph of the user's")
    assert call(run, 3) == "apart" and pool.asked == ["build apart"]
    capturing.clear()
    assert call(run, 3) == "general"
    pool.done = True
    assert prepared(run) == ("own", 0)
    capturing.append("another graph")
    assert call(run, 1) == "own"
