"""Ranks tell each other of their collectives, over a store such as a job has. Here they take turns in one process."""

import pytest
from torch.distributed import HashStore

from fusioncache.accelerators.schedule.scheduling import (
    CollectiveAgreement,
    CollectiveCounts,
    CollectiveMismatch,
    Stretch,
)

LONG, SHORT = ("all_gather float32 (8,)", "all_reduce SUM float32 (4,)"), ("all_gather float32 (8,)",)
OTHER = ("all_gather float32 (8,)", "all_reduce SUM float32 (2,)")


class Group:
    """It stands for a process group."""


class Rank:
    def __init__(self, number: int, store: HashStore, ranks: tuple[int, ...] = (0, 1)):
        self.number, self.store, self.ranks = number, store, ranks
        self.group, self.places = Group(), CollectiveCounts()

    def derive(self, *messages: str) -> CollectiveAgreement:
        stretch = Stretch(self.group, "0", self.ranks, messages)
        return CollectiveAgreement([stretch], self.number, self.store, self.places)

    def count(self) -> int:
        return self.places.advance(self.group, 0)


def make_ranks(count: int = 2) -> list[Rank]:
    store = HashStore()
    return [Rank(number, store, tuple(range(count))) for number in range(count)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_later_of_two_that_differ_is_told_the_first_difference(order):
    ranks, told = make_ranks(3), []
    for number in order:
        try:
            ranks[number].derive(*(OTHER if number == 2 else LONG))()
        except CollectiveMismatch as mismatch:
            told.append((number, str(mismatch)))
    ((number, text),) = told
    assert number == max((0, 2), key=order.index)
    here, there = ("(4,)", "(2,)") if number == 0 else ("(2,)", "(4,)")
    assert text.startswith(
        f"collective 2 is all_reduce SUM float32 {here} on rank {number}, "
        f"and all_reduce SUM float32 {there} on rank {2 - number}. "
    )


def test_ranks_that_do_the_same_go_on_and_what_one_runs_again_keeps_no_other_waiting():
    one, other = make_ranks()
    first = one.derive(*LONG)
    first()
    first()
    for _ in range(2):
        other.derive(*LONG)()
    one.derive(*SHORT)()
    other.derive(*SHORT)()
    assert one.count() == other.count() == 2 * len(LONG) + len(SHORT)


def test_programs_are_compared_at_their_place_among_all_that_ran():
    """A rank derives a program anew, the other one does not: what each derives next is not taken for the other's."""
    one, other = make_ranks()
    kept = other.derive(*LONG)
    for _ in range(3):
        one.derive(*LONG)()
        kept()
    one.derive(*OTHER)()
    with pytest.raises(CollectiveMismatch):
        other.derive(*LONG)()


def test_each_group_has_places_of_its_own():
    store, places = HashStore(), CollectiveCounts()
    rows, columns = Group(), Group()
    both = [Stretch(rows, "rows", (0, 1), LONG), Stretch(columns, "columns", (0, 2), SHORT)]
    CollectiveAgreement(both, 0, store, places)()
    CollectiveAgreement(both[:1], 0, store, places)()
    assert places.advance(rows, 0) == 2 * len(LONG)
    assert places.advance(columns, 0) == len(SHORT)


def test_a_store_that_fails_ends_no_job():
    rank = Rank(0, object())
    rank.derive(*LONG)()
    assert rank.count() == len(LONG)
