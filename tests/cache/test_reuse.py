"""A function that is called often is replaced by another one, as soon as that is there, and by nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from fusioncache.backends.api import Run
from fusioncache.cache.reuse import OFTEN, Allowance, Order, replace_if_reused


def general(args: Sequence[int]) -> list[str]:
    return ["general"]


def own(args: Sequence[int]) -> list[str]:
    return ["own"]


@dataclass
class Somebody:
    """Who compiles beside, and is done when told."""

    made: Run | None = own
    done: bool = False
    takes_orders: bool = True
    asked: list[str] = field(default_factory=list)

    def place(self) -> bool:
        self.asked.append("place")
        return self.takes_orders

    def is_done(self) -> bool:
        self.asked.append("is done")
        return self.done

    def fetch(self, args: Sequence[int]) -> Run | None:
        self.asked.append("fetch")
        return self.made

    def run(self) -> Run:
        return replace_if_reused(general, Order(self.place, self.is_done, self.fetch))


def call(run: Run, times: int) -> str:
    return [run([])[0] for _ in range(times)][-1]


def test_a_size_that_is_used_often_gets_its_own():
    somebody = Somebody()
    run = somebody.run()
    assert call(run, OFTEN - 1) == "general" and not somebody.asked
    assert call(run, 300) == "general" and somebody.asked[0] == "place" and somebody.asked.count("place") == 1
    somebody.done = True
    assert call(run, 30) == "own"
    asked = len(somebody.asked)
    assert call(run, 3 * OFTEN) == "own" and len(somebody.asked) == asked
    assert somebody.asked.count("fetch") == 1


def test_what_no_later_process_can_load_gets_its_own_at_once():
    somebody = Somebody(done=True)
    run = replace_if_reused(general, Order(somebody.place, somebody.is_done, somebody.fetch, after=1))
    assert call(run, 1) == "general" and somebody.asked == ["place"]
    assert call(run, 30) == "own"


@pytest.mark.parametrize("somebody", [Somebody(made=None, done=True), Somebody(takes_orders=False)])
def test_without_it_nothing_changes(somebody):
    run = somebody.run()
    assert call(run, 5 * OFTEN) == "general"
    assert somebody.asked.count("place") == 1 and somebody.asked.count("fetch") <= 1


def test_what_fails_is_not_asked_again(monkeypatch):
    somebody = Somebody(done=True)
    monkeypatch.setattr(somebody, "fetch", lambda args: 1 / 0)
    run = somebody.run()
    assert call(run, 5 * OFTEN) == "general"
    assert somebody.asked == ["place", "is done"]


def test_where_bits_must_stay_nothing_is_replaced():
    somebody = Somebody(done=True)
    run = somebody.run()
    torch.use_deterministic_algorithms(True)
    try:
        assert call(run, 3 * OFTEN) == "general" and not somebody.asked
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_allowance_ends():
    allowance = Allowance(2)
    assert [allowance.take() for _ in range(4)] == [True, True, False, False]
