"""Iteration without interpreting how the next item is asked for: the same traces, guards and errors."""

from collections import OrderedDict
from unittest import mock

import pytest
import thunder
import torch
from same_traces import OWN, trace_with
from thunder.core import interpreter

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING

X = torch.linspace(-1, 1, 4)


class Doubled(list):
    def __iter__(self):
        return iter([2 * each for each in super().__iter__()])


class Shifted(tuple):
    def __getitem__(self, index):
        return super().__getitem__(index) + 1


class Getter:
    """Something without ``__iter__``."""

    def __getitem__(self, index):
        if index > 2:
            raise IndexError(index)
        return index


class Countdown:
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        return self

    def __next__(self):
        self.start -= 1
        if self.start < 0:
            raise StopIteration
        return self.start


class Broken(Countdown):
    def __next__(self):
        raise ValueError("broken")


def numbers():
    yield 1
    got = yield 2
    yield 3 if got is None else 4


def failing():
    yield 1
    raise KeyError("no more")


def loops(x, items, named):
    for each in items:
        x = x + (each if isinstance(each, int) else each[0])
    for key in named:
        x = x * named[key] + len(key)
    for key, value in named.items():
        x = x + value * len(key)
    for value, key in zip(named.values(), reversed(named.keys()), strict=True):
        x = x - value - len(key)
    for i, each in enumerate(items, 3):
        x = x + i if each else x - i
    for each in reversed(items):
        x = x / 2 if each else x
    return x


def of_all_kinds(x):
    containers = (range(3), (1, 2), [3], {4: 5}, {6}, Doubled([1, 2]), Shifted((1, 2)), Getter(), "", x.shape, b"a")
    views = (OrderedDict(a=1).values(), frozenset({7}), numbers(), Countdown(2))
    of_python = (map(abs, [-1]), filter(None, [0, 2]), enumerate([1]), zip((1, 2), [3, 4], strict=False))
    for each in (*containers, *views, *of_python, iter([1, 2]), iter(iter((3, 4)))):
        for item in each:
            x = x + (item if isinstance(item, int) else item[-1])
    return x + sum(row.sum() * 2 for row in x.reshape(2, 2))


def asked_one_by_one(x):
    of_list, of_tuple = iter([1, 2, 3]), iter((x, x + 1))
    x = x + next(of_list) + next(of_tuple) + next(iter({"a": 1}), 5) + next(iter([]), 6) + next(iter(()), x)
    rest = [*list(of_list), next(of_list, 7), next(of_tuple, None), next(of_tuple, 8)]
    generator = numbers()
    return x * sum(rest[:3]) + rest[3] + rest[4] + next(generator) + generator.send(None) + of_list.__length_hint__()


def changed_while_it_runs(x):
    items, seen = [1, 2, 3], 0
    for each in items:
        if each < 3:
            items.append(each + 2)
        seen += each
    iterator = iter(items)
    next(iterator)
    items.clear if False else items.pop()
    return x + seen + len(items) + sum(iterator)


def unpacking(x, pair, nested):
    a, b = pair
    (c, d), [e, *f] = nested, [1, 2, 3]
    g, h = {"g": 1, "hh": 2}
    i, j = numbers_of_two()
    k, (m, n) = x.shape[0], (b, a)
    first, *_, last = range(5)
    p, q = Doubled([1, 2])
    return x * a + b + c - d + e + sum(f) + len(g + h) + i * j + k + m - n + first + last + p * q


def numbers_of_two():
    yield 3
    yield 4


def loop_with_else(x):
    for each in (1, 2):
        x = x + each
    else:
        x = x * 2
    for each in [3, 4]:
        if each == 3:
            continue
        x = x - each
        break
    else:
        x = x * 5
    return [[i * j for j in range(i)] for i in (1, 2)][1][0] + x


class Stacked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Identity() for _ in range(3))
        self.named = torch.nn.ModuleDict({"a": torch.nn.Identity()})
        self.scales = torch.nn.ParameterList([torch.ones(4), torch.zeros(4)])
        self.chain = torch.nn.Sequential(torch.nn.ReLU())
        self.steps, self.sizes = [2, 3.0], (4, (5, 6))

    def forward(self, x):
        for block, scale in zip(self.blocks, self.scales, strict=False):
            x = block(x) * scale
        for name, block in self.named.items():
            x = block(x) + len(name)
        for i, block in enumerate(self.blocks[1:]):
            x = block(x) + i
        first, (second, third) = self.sizes
        for step in self.steps:
            x = x * step
        return self.chain(x) + first * second + third + sum(weight.sum() for weight in self.parameters())


def too_few(x):
    a, b = (x,)
    return a + b


def too_many(x):
    a, b = [x, x, x]
    return a + b


def no_iterable(x):
    return x + sum(each for each in 3)


def broken(x):
    return x + sum(Broken(3))


def of_a_failing_generator(x):
    try:
        for each in failing():
            x = x + each
    except KeyError as error:
        return x + len(str(error))


def exhausted(x):
    return x + next(iter([]))


def exhausted_and_caught(x):
    iterator = iter((1,))
    next(iterator)
    try:
        next(iterator)
    except StopIteration:
        return x * 2


OF_A_TENSOR = (of_all_kinds, asked_one_by_one, changed_while_it_runs, loop_with_else, exhausted_and_caught)
FAILING = (too_few, too_many, no_iterable, broken, of_a_failing_generator, exhausted)
PROGRAMS = [
    (loops, (X, [1, (2, 3)], {"a": 2, "bc": 3})),
    (unpacking, (X, (2, 3), (4, 5))),
    *((each, (X,)) for each in (*OF_A_TENSOR, *FAILING, Stacked())),
]


@pytest.mark.parametrize(("program", "args"), PROGRAMS)
def test_traces_and_errors_stay_the_same(program, args):
    own = trace_with(OWN, program, *args)
    assert trace_with([*OWN, "iteration"], program, *args) == own
    assert trace_with(TRACING, program, *args) == own


def test_iterators_of_lists_are_not_interpreted():
    def program(x):
        for each in [1, 2]:
            x = x + each
        a, b = (each * 2 for each in (1, 2))
        return x * a + b

    def interpreted():
        ran = []

        def run(frame, *args, **kwargs):
            ran.append(frame.qualname)
            return own(frame, *args, **kwargs)

        own = interpreter._run_frame
        with mock.patch.object(interpreter, "_run_frame", run):
            thunder.jit(program)(X)
        return {name for name in ran if "Iter" in name or "next" in name or "_iter_" in name}

    assert interpreted()
    tracing.install([*OWN, "iteration"])
    assert not interpreted()
    tracing.uninstall()
