"""Programs at several lengths, here and in a later process: results are always Thunder's."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import pytest
import thunder
import torch
from compared_models import ComparedModel, are_equal, train
from stored_programs import compile_anew
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from fusioncache.accelerators.sizes import lengths

WIDTH = 40


class Program(torch.nn.Module):
    def __init__(self, compute: Callable):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.compute = compute

    def forward(self, *args):
        return self.compute(self.weight, *args)


class Table(Program):
    """Has a row for each of twelve tokens: as many take the table as it is, and fewer ones a part of it."""

    def __init__(self, compute: Callable):
        super().__init__(compute)
        self.register_buffer("rows", torch.randn(12, WIDTH))

    def forward(self, x):
        return self.compute(self.weight, x, self.rows[: x.shape[1]])


def of_product(compute: Callable) -> Callable:
    """Returns a function that takes the parameter too, so that it has a gradient."""
    return lambda weight, x, *more: compute(x @ weight, *more)


def make(length, count=2):
    return torch.randn(count, length, WIDTH, generator=torch.Generator().manual_seed(length), requires_grad=True)


def make_one(length, count=2):
    return (make(length, count),)


def with_number(length, number=None):
    return make(length), length if number is None else number


def with_unused(count, size=7):
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count)), torch.ones(size)


FEW = (64, 96, 40, 96)
"""Lengths. The third one equals the width."""
MORE = (*FEW, 100, (200, 3))


@dataclass(frozen=True)
class Case:
    """A program, its sizes in order, and how many of its programs are filled in or made by passes alone."""

    compute: Callable
    filled: int = 1
    replayed: int = 0
    sizes: tuple = FEW
    make: Callable[..., tuple] = make_one
    later: tuple[tuple[Any, bool], ...] = ((50, True),)  # each with whether a later process fills in a program
    program: type[Program] = Program

    def make_args(self, sizes: Any) -> tuple:
        return self.make(*sizes) if isinstance(sizes, tuple) else self.make(sizes)


def rows(weight, x):
    """All tokens in one dimension, and back."""
    return ((x @ weight).reshape(-1, WIDTH) @ weight).view(*x.shape[:2], 4, -1).transpose(1, 2).flatten(2)


def leave_out(weight, x, unused):
    """Nothing is computed of the second argument, whose size Thunder checks all the same."""
    return x @ weight


@of_product
def make_twice(x):
    return x * torch.ones(x.shape[1], WIDTH) * torch.ones(100, WIDTH).sum()


NONE, TABLE = ((50, False),), ((6, True), (12, False))
CASES = {
    "sums as long as they are wide": Case(of_product(lambda x: x + x.sum(1)[:, None] * x.sum(2)[:, :, None])),
    "parts, padded in backward": Case(
        of_product(lambda x: torch.cat((x[:, x.shape[1] // 2 :] * 2.0, x[:, : x.shape[1] // 2]), 1) * torch.tanh(x))
    ),
    "two operations that are one at 100": Case(make_twice, 1, 2, MORE),
    "numbers that the program computes": Case(
        of_product(
            lambda x: x * (1 / x.shape[1]) + x.sum((0, 1)) / (0.5 * float(x.shape[1]) + x.shape[0]) - 3.0 * x.shape[1]
        ),
        2,
        1,
        MORE,
    ),
    "a number of either sign, and 0.0": Case(
        of_product(lambda x: x * ((x.shape[1] - 65) * 0.5) + 1.0 / (x.shape[1] + 1)), 2, 0, (*FEW, 65, 100)
    ),
    "all tokens in one dimension": Case(rows, 2, 1, MORE),
    "a pad that our own passes look at": Case(
        lambda w, x: functional.conv1d((x @ w).transpose(1, 2), w[:, :, None].expand(WIDTH, WIDTH, 3), stride=2)
    ),
    "returned numbers": Case(
        lambda w, x: {"all": [x.shape[0], (math.prod(x.shape),)], x.shape[1]: x @ w}, 0, later=NONE
    ),
    "then the longest": Case(of_product(torch.mul), 1, 1, (10, 12, 9, 8, 12, 10), later=TABLE, program=Table),
    # Programs with a number as an argument, as Dynamo passes it.
    "makes as many": Case(
        of_product(lambda x, n: x + torch.arange(n)[:, None] + torch.ones(n, WIDTH).sum(0)), make=with_number
    ),
    "compares": Case(of_product(lambda x, n: x * 2 if n > 70 else x + 1), 1, 0, (*FEW, 65, 100), with_number),
    "looks it up": Case(of_product(lambda x, n: x * {64: 1.0}.get(n, 3.0)), 0, make=with_number, later=NONE),
    "was the length so far": Case(
        of_product(lambda x, n: x.sum(1, keepdim=True).expand(x.shape[0], n, WIDTH)),
        4,
        1,
        (6, 9, 5, (9, 7), (30, 6), (30, 41), (30, 42)),
        with_number,
    ),
    # An unused argument may have any size.
    "both vary": Case(leave_out, 2, 0, ((2, 2), (3, 3), (4, 4), (5, 5)), with_unused, (((6, 6), True),)),
    "it varies": Case(leave_out, 2, 0, ((2, 7), (2, 9), (2, 3), (2, 5)), with_unused, (((2, 8), True),)),
    # While both were equal, it is unknown which of them each check is of.
    "both were the same": Case(leave_out, 1, 1, ((2, 2), (3, 3), (4, 9), (5, 6)), with_unused),
    "both were 1": Case(leave_out, 1, 0, ((2, 7), (3, 9), (4, 1), (1, 4), (5, 6)), with_unused),
}
"""``test_watched_lengths.py`` tests other uses of sizes, before Thunder's passes."""


@pytest.mark.parametrize("name", CASES)
def test_each_length_has_thunders_bits_here_and_in_a_later_process(name, tmp_path):
    case = CASES[name]
    both = ComparedModel(case.program(case.compute), tmp_path)
    for sizes in case.sizes:
        both.check(*case.make_args(sizes))
    stats = both.transform.stats()
    reasons = " ".join((*stats.passes_repeated, *stats.programs_interpreted))
    assert (stats.programs_filled, stats.programs_replayed) == (case.filled, case.replayed), reasons
    assert ("become the same at these sizes" in reasons) is (case.compute is make_twice)
    assert "failed" not in reasons, reasons
    later, transform = compile_anew(both.model, tmp_path / "store")
    for sizes, fills in case.later:
        before = transform.stats()
        args = case.make_args(sizes)
        assert are_equal(train(later, *args), train(both.own, *args))
        assert transform.stats().programs_filled - before.programs_filled == fills
    traced = thunder.cache_misses(later)
    assert traced + transform.stats().programs_loaded == sum(not each for _, each in case.later)
    assert case.later is not TABLE or not traced


def store(batch):
    batch["z"] = batch["x"] * 2
    return batch["z"] + batch["y"]


@pytest.mark.parametrize(
    ("compute", "filled"),
    [(lambda batch: batch["x"] * batch.pop("y"), 0), (store, 0), (lambda batch: batch["x"].add_(1) * batch["y"], 1)],
    ids=["pops", "stores", "adds"],
)
def test_what_a_program_does_to_its_batch_is_what_it_does_with_thunder(compute, filled, tmp_path):
    """Thunder 0.2.6 changes the batch while it traces, and not later."""
    own, (compiled, transform) = thunder.jit(compute), compile_anew(compute, tmp_path)
    for length in (10, 14, 18, 18):
        outcomes = []
        for function in (own, compiled):
            batch = {"x": torch.ones(length), "y": torch.full((length,), 3.0)}
            try:
                result = function(batch).tolist()
            except Exception as error:
                result = repr(error)
            left = {name: each.tolist() if type(each) is torch.Tensor else type(each) for name, each in batch.items()}
            outcomes.append((result, left))
        assert outcomes[0] == outcomes[1]
    assert transform.stats().programs_filled == filled


SCALE = 8
"""A number that programs read, and that may equal a length."""


@of_product
def scaled(x):
    """As many rows of a table as there are, times a number; two operations are one where there are ten rows."""
    table = torch.ones(12, WIDTH)[: x.shape[1]]
    return x * table * SCALE * torch.ones(x.shape[1], WIDTH) * torch.ones(10, WIDTH).sum()


def test_programs_that_read_something_else_are_of_no_family_together(tmp_path, monkeypatch):
    both, family = ComparedModel(Program(scaled), tmp_path), Mock(wraps=lengths.Family)
    monkeypatch.setattr(lengths, "Family", family)
    for length, scale in ((12, 8), (10, 8), (9, 9), (8, 8), (7, 8), (6, 8), (5, 9)):
        monkeypatch.setitem(globals(), "SCALE", scale)
        both.check(make(length))
    pairs = [{each.sizes[0][1] for each in call.args[2]} for call in family.call_args_list]
    assert {7, 8} in pairs and all(pair <= {5, 9} or not pair & {5, 9} for pair in pairs)


def test_what_is_no_integer_above_1_is_interpreted(tmp_path):
    def program(x, number):
        return x * 2 if number is None or isinstance(number, str) else x * number

    both, x = ComparedModel(program, tmp_path), torch.randn(2, 4)
    for number in (6, 9, 5):
        both.check(x, number)
    before = both.uninterpreted_programs
    for other in (-1, 0, 1, True, False, 2.0, 7.5, None, "7", torch.tensor(7)):
        both.check(x, other)
        assert both.uninterpreted_programs == before, other


def test_where_what_ranks_exchange_has_a_size_of_an_argument_passes_go_over_each_length(tmp_path, monkeypatch):
    """The place of a collective depends on its bytes. Here a product replaces it."""
    monkeypatch.setattr(lengths, "exchanges", lambda symbol: symbol.sym.name == "matmul")
    both = ComparedModel(Program(rows), tmp_path)
    for length in (40, 41, 42):
        train(both.compiled, make(length))
    stats = both.transform.stats()
    assert stats.programs_filled == 0 and set(stats.passes_repeated) == {"a collective's bytes depend on a size"}


LAYOUTS = {
    "in rows": lambda length: torch.randn(3, length),
    "in columns": lambda length: torch.randn(length, 3).T,
    "part of each row": lambda length: torch.randn(3, length + 2)[:, 1:-1],
    "rows behind others": lambda length: torch.randn(3 + length, length)[length:],
    "one row": lambda length: torch.randn(length, 1).expand(length, 3).T,
}
LOOKS = {
    "looks at nothing": torch.sin,
    "writes into it": lambda x: x.add_(1) * 2,
    "asks whether it is contiguous": lambda x: (x * 2, x.is_contiguous()),
    "asks for the order of its dimensions": lambda x: x * x.dim_order()[0],
    "makes it contiguous": lambda x: x.contiguous() * 2,
    "makes it contiguous behind": lambda x: (x.transpose(0, 1).contiguous().cos(), x.contiguous()),
    "makes it flat": lambda x: x.reshape(-1).cos(),
    "returns it": lambda x: (x, x.T, x[1:]),
    "copies it": lambda x: x.clone(),
}


def call(function, part):
    """Returns the results, then the whole memory of the argument, which is a copy."""
    whole = part.untyped_storage().clone()
    try:
        results = function(torch.empty(0).set_(whole, part.storage_offset(), part.shape, part.stride()))
    except RuntimeError as error:  # a write into an expanded tensor
        results = str(error)
    return [*tree_leaves(results), torch.empty(0).set_(whole)]


@pytest.mark.parametrize("name", LOOKS)
def test_what_depends_on_a_layout_is_what_it_is_with_thunder(name, tmp_path):
    """Thunder's prologue checks no strides, so a layout is only read where no program exists for the sizes."""
    own, (compiled, transform) = thunder.jit(LOOKS[name]), compile_anew(LOOKS[name], tmp_path)
    for number, make_layout in enumerate(LAYOUTS.values()):
        for length in (10, 14, 18, 22, 14):
            part = make_layout(length + number)
            assert are_equal(call(own, part), call(compiled, part))
    filled = 0 if name.startswith("asks") else 10
    assert (thunder.cache_misses(compiled), transform.stats().programs_filled) == (17 - filled, filled)
