"""Blocks that are alike, in programs where that is not enough to tell what one of them would do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 4).reshape(2, 2)
COUNT = 6
TICKS = [0]


class Block(nn.Module):
    """A block that computes something with what it is told."""

    def __init__(self, answer: Callable[[Any], Any]):
        super().__init__()
        self.answer = answer
        self.weight = nn.Parameter(torch.randn(2, 2) * 0.3)

    def forward(self, x, given=None):
        return x + torch.tanh(x @ self.weight) * self.answer(given)


class Stack(nn.Module):
    """Blocks, one after the other, and something that happens before the fifth."""

    def __init__(self, answer: Callable[[Any], Any], make: Callable[[], Any] = dict, change: Any = None):
        super().__init__()
        self.blocks = nn.ModuleList(Block(answer) for _ in range(COUNT))
        self.make, self.change = make, change

    def forward(self, x):
        given = self.make()
        for place, block in enumerate(self.blocks):
            if place == 4 and self.change is not None:
                self.change(given)
            x = block(x, given)
        return x


class Ticking:
    """What asks it for a number or a string is written in C, and counts."""

    def tick(self) -> int:
        TICKS[0] += 1
        return 1

    def __index__(self) -> int:
        return self.tick()

    def __str__(self) -> str:
        return "a" * self.tick()

    def __format__(self, spec: str) -> str:
        return str(self)


TICKING = Ticking()


@program
def what_is_made_in_the_trace_changes_between_blocks(run: Runner) -> None:
    class Holder:
        def __init__(self, number):
            self.number = number

    def grow(given):
        given += [2]

    def fill(given):
        functools.partial(Holder.__init__, given)(3)

    run(Stack(len, lambda: [1], grow), X)
    run(Stack(lambda given: given.number, lambda: Holder(1), fill), X)


@program
def objects_answer_for_themselves(run: Runner) -> None:
    answers = [
        lambda given: int(TICKING),
        lambda given: len("{a}".format(a=TICKING)),  # noqa: UP032
        lambda given: max(1, 2, key=lambda value: TICKS.append(value) or value),
    ]
    for answer in answers:
        TICKS[:] = [0]
        run(Stack(answer), X)
        run.note("ticks", TICKS)
