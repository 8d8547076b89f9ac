"""Programs at other lengths than the interpreted one: the trace that Thunder makes there, or none."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from same_traces import OWN, stop_at_first
from thunder.core.compile_data import get_compile_data
from thunder_versions import HAS_MINIMUM

from fusioncache import tracing
from fusioncache.accelerators.sizes.hooks import watch_sizes
from fusioncache.accelerators.sizes.journal import Journal, SizeGuard, replay
from fusioncache.accelerators.sizes.values import find_sizes
from fusioncache.ir.errors import Declined


def trace_first(program: Callable[..., Any], *args: Any) -> str:
    """Returns the text of the first trace of the computation, before any pass."""
    return stop_at_first(lambda own, *given: str(own(*given).computation_trace), program, *args)


def watch(program: Callable[..., Any], *args: Any) -> Journal:
    """Returns the journal of a program's trace, and asserts that the trace is the same as without the journal."""

    def watch_it(own, function, *given):
        results, journal = watch_sizes(partial(own, function), get_compile_data(), *given)
        return journal, str(results.computation_trace)

    journal, text = stop_at_first(watch_it, program, *args)
    assert text == trace_first(program, *args)
    return journal


def list_guards(journal: Journal) -> list[SizeGuard]:
    return [entry for entry in journal.entries if isinstance(entry, SizeGuard)]


def replay_as(program: Callable[..., Any], journal: Journal, *args: Any) -> str | Declined:
    """Returns the text of the first trace of the computation for other arguments, or why there is none."""

    def replay_it(*_):
        try:
            return str(replay(journal, find_sizes(args, {}), get_compile_data()).computation)
        except Declined as error:
            return error

    return stop_at_first(replay_it, program, *args)


LENGTHS = (64, 96, 65, 200, 8, 2)
WEIGHT = torch.randn(8, 8)
BY_LENGTH = {64: 1.0, 96: 2.0}


class Named(NamedTuple):
    rows: int
    columns: int


class Sizes(tuple[int, ...]):
    pass


@pytest.fixture(autouse=True)
def _few_shortcuts():
    tracing.install(OWN)


def moves_sizes(x):
    batch, length, width = x.size()
    flat = x.reshape(batch * length, width) @ WEIGHT
    halves = flat.view(*x.shape[:-1], -1)[:, : length // 2]
    return halves + x[:, -(length // 2) :] + torch.zeros((batch, length - length // 2 - length % 2, width))


def makes_masks(x):
    length = x.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    positions = torch.arange(0, length)
    return torch.where(mask, x @ x.transpose(1, 2), 0.0) + positions


def computes_with_tensors(x):
    return x * x.shape[1] + len(x) - x.dim() + x.shape[1].__class__(2.5)


def unpacks(x):
    heads = torch.stack([x, 2 * x, x + 1])
    queries, keys, values = heads
    first, *others = (column / queries.shape[1] for column in (queries + keys).transpose(0, 2))
    return first.sum() * values + len(others) + others[0].mean()


def reorders_sums(x):
    items = [x.shape[1], x, x * 2, x.shape[0], x[:, : x.shape[1] // 2].mean()]
    total = sum(items) * 2 + sum((x, x + len(items)), start=x.sum()) + sum([x])
    return total[:, : sum(x.shape) - x.shape[0] - 9] * sum([x.shape[1], 3], start=x.shape[0])


def goes_through_rows(x):
    total = x.sum()
    for row in x.view(x.shape[1] // 8, -1):
        total = total + row.sum()
    return total


def counts(x):
    for number in range(x.shape[1] // 32):
        x = x + number
    return x


def counts_elements(x):
    width = x.shape[2]
    flat = x.view(x.numel()) + x.reshape(x.numel() // width, width).sum() / x.numel()
    count, ask = x[:, 1:].numel, functools.partial(x.numel)
    assert isinstance(count, int) and isinstance(x.numel(), int) and type(x.numel()) is int and type(count) is not int
    return (
        flat.view(-1, int(x.numel()) // (len(x) * x[0].numel() // width))
        + count() / ask()
        + (count - 1)
        + torch.numel(x)
    )


class StoresTheLast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = 0

    def forward(self, x):
        if x.shape[1] > 3:
            self.last = x.shape[1]
        return x + 1


class StoresNothing(torch.nn.Module):
    def forward(self, x):
        return x + 1


class Parts(torch.nn.Module):
    """Modules of a user's own, cut out of a list, counted and taken in pairs: they are no places for sizes."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(StoresNothing() for _ in range(3))

    def forward(self, x):
        for number, (one, other) in enumerate(zip(self.parts[:2], self.parts[1:], strict=True), x.shape[1]):
            x = one(x) + other(x)[:, :number]
        return x


SAME = [moves_sizes, makes_masks, computes_with_tensors, counts_elements, unpacks, reorders_sums]
SAME = {each.__name__: each for each in SAME}
SAME |= {"names sizes": lambda x: x.reshape(Named(x.shape[0], x.shape[1] * 8)) + 1, "modules in a list": Parts()}
LOOKING = {
    "branches": (5, lambda x: x * 2 if x.shape[1] > 100 else x + 1),
    "asks for truth": (1, lambda x: x * 2 if x.shape[1] - 64 else x + 1),
    **({} if HAS_MINIMUM else {"takes the smaller": (5, lambda x: x[:, : min(x.shape[1], 100)] + 1)}),
    "counts": (2, counts),
    "looks up": (1, lambda x: x * BY_LENGTH.get(x.shape[1], 3.0)),
    "returns it": (1, lambda x: (x + 1, x.shape[1])),
    "sorts": (1, lambda x: x.reshape(sorted([*x.shape]))),
    "stores the length": (1, StoresTheLast()),
    "goes through rows": (2, goes_through_rows),
    "maps": (0, lambda x: x + sum(len(each) for each in map(range, x.shape))),
    "sorts by a function": (0, lambda x: x * sorted([1, 2], key=lambda each: len(range(each, x.shape[1])))[0]),
    "compares a number of elements": (4, lambda x: x * 2 if x.numel() > 1500 else x + 1),
    "makes a size": (1, lambda x: x + torch.zeros(torch.Size([x.shape[1], 8]))),
    "formats another tuple": (0, lambda x: x * len(str(Sizes(x.shape)))),
}
"""Programs, each with the number of lengths at which it is known to do the same as at 64."""


def of_length(length, batch=2):
    return torch.randn(batch, length, 8)


@pytest.mark.parametrize("program", SAME.values(), ids=SAME)
def test_what_only_moves_sizes_is_the_same_at_any_length(program):
    if isinstance(program, Parts):
        tracing.install()
    journal = watch(program, of_length(64))
    assert journal.refusals == []
    assert not [guard for guard in list_guards(journal) if "compare" not in guard.reason]
    for other in (of_length(2), of_length(257, 5)):
        assert replay_as(program, journal, other) == trace_first(program, other)


@pytest.mark.parametrize(("same", "program"), LOOKING.values(), ids=LOOKING)
def test_what_looks_at_sizes_is_interpreted_where_it_would_see_something_else(program, same):
    journal = watch(program, of_length(64))
    told = ("returns it", *(guard.reason for guard in list_guards(journal) if "setattr" in guard.reason))
    assert all("test_watched_lengths.py" in guard.place or guard.reason in told for guard in list_guards(journal))
    found = [(replay_as(program, journal, other), other) for other in map(of_length, LENGTHS)]
    kept = [(text, other) for text, other in found if not isinstance(text, Declined)]
    assert len(kept) == same
    for text, other in kept:
        assert text == trace_first(program, other)


def test_0_and_1_are_never_like_others():
    journal = watch(moves_sizes, of_length(64))
    for other in (of_length(1), of_length(64, 1), torch.randn(2, 64, 8, 8)):
        assert isinstance(replay_as(moves_sizes, journal, other), Declined)


def test_an_operation_that_fails_at_a_length_is_left_to_thunder():
    x = of_length(8)

    def program(x):
        return x @ WEIGHT + x[:, :8]

    journal = watch(program, x)
    assert "raised" in str(replay_as(program, journal, of_length(9)))
