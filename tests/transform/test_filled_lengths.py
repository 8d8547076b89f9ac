"""Programs at one length after the other, here and in a later process: always Thunder's own result."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import thunder
import thunder.torch as ltorch
import torch
from stored_programs import compile_anew, without_interpreter
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import OperatorExecutor, deregister_executor, register_executor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import fusioncache
from fusioncache.accelerators.sizes import lengths

FEW = ((64, 2), (96, 2), (40, 2), (96, 2))
"""Lengths with numbers of rows. The third length is the width as well."""
MORE = (*FEW, (100, 2), (200, 3))
ACROSS = (*FEW, (65, 2), (100, 2))
LATER = 50
"""A length that only a later process has."""
WIDTH = 40


class Program(torch.nn.Module):
    """A function of a parameter and of arguments."""

    def __init__(self, compute: Callable):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.compute = compute

    def forward(self, *args):
        return self.compute(self.weight, *args)


def same_twice(x):
    """Two operations that are one where the length is 100."""
    return x * torch.ones(x.shape[1], WIDTH) * torch.ones(100, WIDTH).sum()


def broadcast(x):
    """Sums that are as long as they are wide where the length is the width."""
    return x + x.sum(1)[:, None] * x.sum(2)[:, :, None]


def means(x):
    """Numbers with a point that are made of the length, forward and backward."""
    return functional.layer_norm(x, (WIDTH,)) * x.mean(1)[:, None] + x.sum(1)[:, None] / x.shape[1]


def scales(x):
    """The same, computed by the program itself."""
    length = x.shape[1]
    return x * (1 / length) + x.sum((0, 1)) / (0.5 * float(length) + x.shape[0]) - 3.0 * length


def differences(x):
    """One that is 0.0 at one length, and has another sign on either side of it."""
    return x * ((x.shape[1] - 65) * 0.5) + 1.0 / (x.shape[1] + 1)


def cut(x):
    """A part of each row, padded again in backward."""
    half = x[:, x.shape[1] // 2 :]
    return torch.cat((half * 2.0, x[:, : x.shape[1] // 2]), 1) * torch.tanh(x)


def rows(weight, x):
    """All tokens in one dimension, and back."""
    return ((x @ weight).reshape(-1, WIDTH) @ weight).view(*x.shape[:2], 4, -1).transpose(1, 2).flatten(2)


def convolution(weight, x):
    """In backward a pad by what is left of the length, which our own passes look at."""
    return functional.conv1d((x @ weight).transpose(1, 2), weight[:, :, None].expand(WIDTH, WIDTH, 3), stride=2)


def of_a_batch(weight, batch):
    """A training step on a container, whatever its other parts are."""
    x, mask = batch[:2]
    return ((x @ weight) * mask[..., None]).square().sum((0, 2)) / x.shape[1]


def looks_up(weight, tokens, x):
    return functional.embedding(tokens, weight) + torch.tanh(x @ weight) / tokens.shape[1]


def make(length, count=2):
    """Returns rows of a length, the same each time."""
    return torch.randn(count, length, WIDTH, generator=torch.Generator().manual_seed(length), requires_grad=True)


def with_number(length, count=2):
    return make(length, count), length


def make_tuple(length, count=2):
    return ((make(length, count), make(length, count)[..., 0].detach(), (1, 2.0, "text", None, [True])),)


def expand(length, count=2):
    return (torch.arange(length) % WIDTH).expand(count, length), make(1, count).expand(count, length, WIDTH)


@dataclass(frozen=True)
class Case:
    """A program, its arguments at a length, and of how many of the later ones nothing is traced."""

    compute: Callable
    make: Callable[..., tuple] = lambda length, count=2: (make(length, count),)
    known: int = 1
    later: int = 1
    sizes: tuple[tuple[int, int], ...] = FEW


def of_product(compute: Callable) -> Callable:
    """Returns a function of the parameter as well, so that there is a gradient of it."""
    return lambda weight, x, *more: compute(x @ weight, *more)


CASES = {
    **{each.__name__: Case(of_product(each)) for each in (broadcast, cut)},
    **{each.__name__: Case(of_product(each), known=3, sizes=MORE) for each in (same_twice, means, scales)},
    "differences": Case(of_product(differences), known=2, sizes=ACROSS),
    "rows": Case(rows, known=3, sizes=MORE),
    "convolution": Case(convolution),
    "a tuple": Case(of_a_batch, make_tuple),
    "expanded": Case(looks_up, expand),
    # Programs that are told the length, as Dynamo does that.
    "makes": Case(of_product(lambda x, n: x + torch.arange(n)[:, None] + torch.ones(n, WIDTH).sum(0)), with_number),
    "compares": Case(of_product(lambda x, n: x * 2 if n > 70 else x + 1), with_number, known=1, sizes=ACROSS),
    "looks it up": Case(of_product(lambda x, n: x * {64: 1.0, 96: 2.0}.get(n, 3.0)), with_number, known=0, later=0),
}
"""What else programs do with sizes is in ``test_watched_lengths.py``, before Thunder's passes."""


def train(compiled, model, args):
    """Returns what comes of a step: results, the parameter's gradient, and those of arguments."""
    model.zero_grad()
    results = tree_leaves(compiled(*args))
    sum(each.square().sum() for each in results if isinstance(each, torch.Tensor)).backward()
    leaves = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor) and each.is_leaf]
    return [*results, model.weight.grad.clone(), *(each.grad for each in leaves if each.grad is not None)]


def are_equal(found, expected):
    pairs = zip(found, expected, strict=True)
    return all(
        torch.equal(one, other) if isinstance(one, torch.Tensor) else (type(one), one) == (type(other), other)
        for one, other in pairs
    )


def compile_both(model, directory, **options):
    """Returns the model as Thunder alone derives it at each length, as we do, and our transform."""
    own, _ = compile_anew(model, directory / "own", programs=False, sizes="static", **options)
    return own, *compile_anew(model, directory / "store", **options)


@pytest.mark.parametrize("name", CASES)
def test_each_length_has_thunders_bits_here_and_in_a_later_process(name, tmp_path):
    case = CASES[name]
    model = Program(case.compute)
    own, compiled, transform = compile_both(model, tmp_path)
    for length, count in case.sizes:
        found, expected = (train(each, model, case.make(length, count)) for each in (compiled, own))
        assert are_equal(found, expected), (length, count)
    stats = transform.stats()
    reasons = " ".join((*stats.passes_repeated, *stats.programs_interpreted))
    assert stats.programs_filled + stats.programs_replayed == case.known, reasons
    assert ("become the same at these sizes" in reasons) is (name == "same_twice")
    assert "failed" not in reasons, reasons
    later, transform = compile_anew(model, tmp_path / "store")
    assert are_equal(train(later, model, case.make(LATER)), train(own, model, case.make(LATER)))
    stats = transform.stats()
    assert (stats.programs_filled, thunder.cache_misses(later)) == (case.later, 1 - case.later)


class Table(torch.nn.Module):
    """Has a row for each of twelve tokens: as many tokens take the table as it is, and fewer ones a part of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.register_buffer("rows", torch.randn(12, WIDTH))

    def forward(self, x):
        return (x @ self.weight) * self.rows[: x.shape[1]]


@pytest.mark.parametrize("sizes", [(12, 10, 9, 8), (10, 12, 9, 8)])
def test_where_one_of_the_first_two_lengths_is_the_longest_the_others_are_filled_in_all_the_same(sizes, tmp_path):
    model = Table()
    own, compiled, transform = compile_both(model, tmp_path)
    for length, filled in zip((*sizes, 12, 10), (0, 0, 0, 1, 1, 1), strict=True):
        assert are_equal(train(compiled, model, (make(length),)), train(own, model, (make(length),)))
        assert transform.stats().programs_filled == filled
    later, counted = compile_anew(model, tmp_path / "store")
    for length, counts in ((6, (1, 0)), (12, (1, 1))):
        assert are_equal(train(later, model, (make(length),)), train(own, model, (make(length),)))
        stats = counted.stats()
        assert (stats.programs_filled, stats.programs_loaded) == counts and not thunder.cache_misses(later)


class Unused(torch.nn.Module):
    """Nothing is computed of its second argument, whose size Thunder checks all the same."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, unused=None):
        return self.linear(x)


@pytest.mark.parametrize(
    ("sizes", "filled"),
    [
        ([(2, 2), (3, 3), (4, 4), (5, 5)], [0, 0, 1, 2]),
        ([(2, 7), (2, 9), (2, 3), (2, 5)], [0, 0, 1, 2]),
        # As long as both were the same, it is not known which of them is checked for which.
        ([(2, 2), (3, 3), (4, 9), (5, 6)], [0, 0, 0, 1]),
        ([(2, 7), (3, 9), (4, 1), (1, 4), (5, 6)], [0, 0, 0, 0, 1]),
    ],
)
def test_an_argument_of_which_nothing_is_computed_may_have_any_size(sizes, filled, tmp_path):
    model = Unused()
    compiled, transform = compile_anew(model, tmp_path)
    for (count, size), expected in zip(sizes, filled, strict=True):
        x = torch.randn(count, 4)
        assert torch.equal(compiled(x, torch.ones(size)), model(x))
        assert transform.stats().programs_filled == expected
    assert len(thunder.compile_stats(compiled).interpreter_cache) == len(sizes)


def count_prologues(call):
    """Returns how many prologues are called in a step."""
    found = []

    def note(frame, event, _):
        found.append(event == "call" and frame.f_code.co_name == "prologue" and "thunder." in frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(found)


def test_a_later_step_looks_at_its_own_program_whatever_others_there_are(tmp_path):
    model = Program(rows)
    compiled, transform = compile_anew(model, tmp_path)
    for length in range(40, 52):
        train(compiled, model, (make(length),))
    assert transform.stats().programs_filled == 10
    # At a length that is new each of the twelve programs is asked in both ways, the short one and Thunder's.
    assert count_prologues(lambda: train(compiled, model, (make(52),))) == 2 * 12 + 1
    for length in (40, 46, 51):
        for _ in range(2):  # the third call, at which a prologue is written anew
            train(compiled, model, (make(length),))
        assert count_prologues(lambda length=length: train(compiled, model, (make(length),))) == 1
    stats = thunder.compile_stats(compiled)
    assert stats.cache_misses == 2
    del stats.interpreter_cache[:-5]  # what was taken out is not asked
    train(compiled, model, (make(40),))
    assert (stats.cache_misses, len(stats.interpreter_cache)) == (3, 6)


def test_a_program_that_differs_in_more_than_sizes_is_found_among_many(tmp_path):
    model = Program(rows)
    own, compiled, _ = compile_both(model, tmp_path)
    for length in range(40, 46):
        train(compiled, model, (make(length),))
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        x = torch.randn(2, 40, WIDTH, dtype=dtype)
        with torch.no_grad():
            assert torch.equal(compiled(x), own(x))
        assert compiled(x).grad_fn is not None


def compute_tanh(x):
    return torch.tanh(x), x.new_zeros(math.ceil(x.shape[1] / 32) * 32)


def compute_backward(gradient, y, padded):
    assert padded.shape == (math.ceil(y.shape[1] / 32) * 32,)
    return gradient * (1 - y * y)


class PaddingExecutor(OperatorExecutor):
    """Has an operation with a second result, padded to a multiple of 32, that its backward alone reads."""

    def __init__(self):
        super().__init__("padding")
        self.tanh = self.register_operator("padded_tanh", meta=self.infer, fn=compute_tanh)
        self.backward = self.register_operator("padded_backward", like=lambda x, y, padded: x, fn=compute_backward)
        self.register_implementation(
            ltorch.tanh, execution_transform=lambda x: self.tanh(x)[0], grad_transform=self.differentiate
        )

    def differentiate(self, x):
        y, padded = self.tanh(x)
        put_grad(x, self.backward(get_grad(y), y, padded))
        return y

    def cache_key(self):
        return "to a multiple of 32"

    @staticmethod
    def infer(x):
        return TensorProxy(like=x), TensorProxy(like=x, shape=(math.ceil(x.shape[1] / 32) * 32,))


@pytest.fixture(name="padding")
def _padding():
    """The executor, under a name by which another process would find it."""
    yield register_executor(PaddingExecutor())
    deregister_executor("padding")


def test_a_size_that_only_an_operation_sees_is_taken_for_no_other(padding, tmp_path):
    """128 and 96 are multiples of 32, so that each number could be one that is padded."""
    model = Program(lambda weight, x: (torch.tanh(x) @ weight).reshape(-1, WIDTH))
    own, compiled, transform = compile_both(model, tmp_path, jit={"executors": [padding, *fusioncache.executors()]})
    for length in (128, 96, 65, 200):
        assert are_equal(train(compiled, model, (make(length),)), train(own, model, (make(length),)))
    assert "padded_tanh" in str(thunder.last_traces(compiled)[-1])
    assert '"cpu f32[224]"' in str(thunder.last_backward_traces(compiled)[-1])
    stats = transform.stats()
    assert (stats.programs_filled, dict(stats.passes_repeated)) == (2, {}), stats.programs_refused


SCALE = 8
"""A number that programs read, and that may be a length by chance."""


def scaled(x):
    """As many rows of a table as there are, times a number; two operations are one where there are ten rows."""
    table = torch.ones(12, WIDTH)[: x.shape[1]]
    return x * table * SCALE * torch.ones(x.shape[1], WIDTH) * torch.ones(10, WIDTH).sum()


def test_programs_that_read_something_else_are_of_no_family_together(tmp_path, monkeypatch):
    model, pairs = Program(of_product(scaled)), []
    own, compiled, _ = compile_both(model, tmp_path)
    family = lengths.Family

    def note(reads, passes, known):
        pairs.append({each.sizes[0][1] for each in known})
        return family(reads, passes, known)

    monkeypatch.setattr(lengths, "Family", note)
    for length, scale in ((12, 8), (10, 8), (9, 9), (8, 8), (7, 8), (6, 8), (5, 9)):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert are_equal(train(compiled, model, (make(length),)), train(own, model, (make(length),))), length
    assert {7, 8} in pairs and all(pair <= {5, 9} or not pair & {5, 9} for pair in pairs)


def test_a_number_of_its_own_may_differ_from_the_length(tmp_path):
    """Both were the same so far: each place has its own, or the program is made anew."""
    model = Program(of_product(lambda x, number=4: x.sum(1, keepdim=True).expand(x.shape[0], number, WIDTH)))
    own, compiled, transform = compile_both(model, tmp_path)
    for number, length in ((6, 6), (9, 9), (5, 5), (7, 9), (6, 30), (41, 30)):
        args = make(length), number
        assert are_equal(train(compiled, model, args), train(own, model, args))
    assert transform.stats().programs_filled >= 1
    with without_interpreter():
        train(compiled, model, (make(30), 42))


def test_what_is_no_integer_above_1_is_interpreted(tmp_path):
    def program(x, number):
        return x * 2 if number is None or isinstance(number, str) else x * number

    compiled, transform = compile_anew(program, tmp_path)
    x = torch.randn(2, 4)
    for number in (6, 9, 5):
        compiled(x, number)
    before = transform.stats().programs_filled + transform.stats().programs_replayed
    own = thunder.jit(program)
    for other in (-1, 0, 1, True, False, 2.0, 7.5, None, "7", torch.tensor(7)):
        assert torch.equal(compiled(x, other), own(x, other)), other
        assert compiled(x, other).dtype == own(x, other).dtype, other
        assert transform.stats().programs_filled + transform.stats().programs_replayed == before, other


def test_where_what_ranks_exchange_has_a_size_of_an_argument_passes_go_over_each_length(tmp_path, monkeypatch):
    """Where it is put depends on how much it is. Here a product stands for it."""
    monkeypatch.setattr(lengths, "exchanges", lambda symbol: symbol.sym.name == "matmul")
    model: Any = Program(rows)
    compiled, transform = compile_anew(model, tmp_path)
    for length in (40, 41, 42):
        train(compiled, model, (make(length),))
    stats = transform.stats()
    assert stats.programs_filled == 0 and set(stats.passes_repeated) == {"a collective's bytes depend on a size"}
