"""Programs in which Thunder's passes go another way at another size: always Thunder's own result."""

import math
import sys

import pytest
import thunder
import thunder.torch as ltorch
import torch
from stored_programs import compile_anew
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import OperatorExecutor, deregister_executor, register_executor

import fusioncache
from fusioncache.accelerators.sizes import lengths

LENGTHS = (64, 96, 65, 200, 100, 40, 96)
WIDTH = 40


class Program(torch.nn.Module):
    def __init__(self, compute):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.compute = compute

    def forward(self, x):
        return self.compute(x @ self.weight, self.weight)


def same_twice(x, weight):
    """Two operations that are one where the length is 100."""
    return x * torch.ones(x.shape[1], WIDTH) * torch.ones(100, WIDTH).sum()


def broadcast(x, weight):
    """Sums that are as long as they are wide where the length is the width."""
    return x + x.sum(1)[:, None] * x.sum(2)[:, :, None]


def means(x, weight):
    """Numbers with a point that are made of the length, forward and backward."""
    return torch.nn.functional.layer_norm(x, (WIDTH,)) * x.mean(1)[:, None] + x.sum(1)[:, None] / x.shape[1]


def scales(x, weight):
    """The same, computed by the program itself."""
    length = x.shape[1]
    return x * (1 / length) + x.sum((0, 1)) / (0.5 * float(length) + x.shape[0]) - 3.0 * length


def differences(x, weight):
    """One that is 0.0 at one length, and has another sign on either side of it."""
    return x * ((x.shape[1] - 65) * 0.5) + 1.0 / (x.shape[1] + 1)


def roots(x, weight):
    """One of which the value is looked at."""
    return x / x.shape[1] ** 0.5


def attention(x, weight):
    y = torch.nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)
    return y[:, 0] * 2.0


def cut(x, weight):
    """A part of each row, padded again in backward."""
    half = x[:, x.shape[1] // 2 :]
    return torch.cat((half * 2.0, x[:, : x.shape[1] // 2]), 1) * torch.tanh(x)


def positions(x, weight):
    length = x.shape[1]
    mask = torch.arange(length)[:, None] >= torch.arange(length)[None, :]
    scores = torch.where(mask, x @ x.transpose(1, 2), -1e9)
    return torch.softmax(scores, -1) @ x


def rows(x, weight):
    """All tokens in one dimension, and back."""
    return (x.reshape(-1, WIDTH) @ weight).view(*x.shape[:2], 4, -1).transpose(1, 2).flatten(2)


def elements(x, weight):
    """Means over tokens and over what a mask leaves, and numbers of elements as sizes."""
    mask = x[..., 0] > 0
    tokens = x.reshape(x.numel() // WIDTH, WIDTH)
    mean = torch.where(mask[..., None], x.square(), 0.0).sum((0, 1)) / mask.numel()
    return x.view(x.numel()).view(x.shape) * mean + tokens.sum(0) / int(x.numel()) + mask.sum() / x[0].numel()


def many_elements(x, weight):
    """The number of elements, looked at."""
    return x * 2.0 if x.numel() > 15000 else x + x.numel()


def convolution(x, weight):
    """In backward a pad by what is left of the length, which our own passes look at."""
    return torch.nn.functional.conv1d(x.transpose(1, 2), weight[:, :, None].expand(WIDTH, WIDTH, 3), stride=2)


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


PROGRAMS = (
    same_twice, broadcast, means, scales, differences, roots, attention, cut, positions, rows,
    elements, many_elements, convolution,
)  # fmt: skip


def train(compiled, model, length, rows=2):
    model.zero_grad()
    x = torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(length), requires_grad=True)
    result = compiled(x)
    result.square().sum().backward()
    return result, x.grad, model.weight.grad.clone()


def test_a_later_step_looks_at_its_own_program_whatever_others_there_are(tmp_path):
    model = Program(rows)
    compiled, transform = compile_anew(model, tmp_path)
    for length in range(40, 52):
        train(compiled, model, length)
    assert transform.stats().programs_filled == 10
    # At a length that is new each of the twelve programs is asked in both ways, the short one and Thunder's.
    assert count_prologues(lambda: train(compiled, model, 52)) == 2 * 12 + 1
    for length in (40, 46, 51):
        train(compiled, model, length)  # the third call, at which a prologue is written anew
        train(compiled, model, length)
        assert count_prologues(lambda length=length: train(compiled, model, length)) == 1
    stats = thunder.compile_stats(compiled)
    assert stats.cache_misses == 2
    del stats.interpreter_cache[:-5]  # nobody is asked that was taken out
    train(compiled, model, 40)
    assert (stats.cache_misses, len(stats.interpreter_cache)) == (3, 6)


def test_a_program_that_differs_in_more_than_sizes_is_found_among_many(tmp_path):
    """With one size there may be several: those that are no other program's are tried as ever."""
    model = Program(rows)
    compiled, _ = compile_anew(model, tmp_path / "store")
    own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
    for length in range(40, 46):
        train(compiled, model, length)
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        x = torch.randn(2, 40, WIDTH, dtype=dtype)
        with torch.no_grad():
            assert torch.equal(compiled(x), own(x))
        assert compiled(x).grad_fn is not None


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
        ([(2, 7), (3, 9), (4, 2), (4, 5)], [0, 0, 1, 2]),
        ([(2, 7), (2, 9), (2, 3), (2, 5)], [0, 0, 1, 2]),
        # As long as both were the same, nobody knows which of them is checked for which.
        ([(2, 2), (3, 3), (4, 9), (5, 6)], [0, 0, 0, 1]),
        ([(2, 7), (3, 9), (4, 1), (1, 4), (5, 6)], [0, 0, 0, 0, 1]),
    ],
)
def test_an_argument_of_which_nothing_is_computed_may_have_any_size(sizes, filled, tmp_path):
    model = Unused()
    compiled, transform = compile_anew(model, tmp_path)
    for (rows, size), count in zip(sizes, filled, strict=True):
        x = torch.randn(rows, 4)
        assert torch.equal(compiled(x, torch.ones(size)), model(x))
        assert transform.stats().programs_filled == count
    assert len(thunder.compile_stats(compiled).interpreter_cache) == len(sizes)


@pytest.mark.parametrize("compute", PROGRAMS, ids=lambda each: each.__name__)
def test_each_length_has_thunders_bits(compute, tmp_path):
    model = Program(compute)
    own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
    compiled, transform = compile_anew(model, tmp_path / "store")
    for length in LENGTHS:
        for count in (2,) if length != 200 else (2, 3):
            expected, found = train(own, model, length, count), train(compiled, model, length, count)
            assert all(map(torch.equal, found, expected)), (length, count)
    stats = transform.stats()
    known = stats.programs_filled + stats.programs_replayed
    assert known + sum(stats.programs_interpreted.values()) == len(set(LENGTHS)) - 1
    assert (stats.programs_filled > 2) is (compute not in (roots, convolution)), stats.passes_repeated
    reasons = " ".join(stats.passes_repeated)
    assert ("become the same at these sizes" in reasons) is (compute is same_twice)
    assert "failed" not in reasons, reasons


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


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_size_that_only_an_operation_sees_is_taken_for_no_other(is_trained, padding, tmp_path):
    """128 and 96 are multiples of 32, so that each number could be one that is padded."""
    model = Program(lambda x, weight: (torch.tanh(x) @ weight).reshape(-1, WIDTH))
    jit = {"executors": [padding, *fusioncache.executors()]}
    compiled, transform = compile_anew(model, tmp_path / "store", jit=jit)
    own, _ = compile_anew(model, tmp_path / "own", jit=jit, programs=False, sizes="static")
    for length in (128, 96, 65, 200):
        if is_trained:
            assert all(map(torch.equal, train(compiled, model, length), train(own, model, length)))
        else:
            with torch.no_grad():
                x = torch.randn(2, length, WIDTH)
                assert torch.equal(compiled(x), own(x))
    assert "padded_tanh" in str(thunder.last_traces(compiled)[-1])
    if is_trained:
        assert '"cpu f32[224]"' in str(thunder.last_backward_traces(compiled)[-1])
    stats = transform.stats()
    assert (stats.programs_filled, dict(stats.passes_repeated)) == (2, {}), stats.programs_refused


class Table(torch.nn.Module):
    """Has a row for each of twelve tokens: as many tokens take the table as it is, and fewer ones a part of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.register_buffer("rows", torch.randn(12, WIDTH))

    def forward(self, x):
        return (x @ self.weight) * self.rows[: x.shape[1]]


@pytest.mark.parametrize("sizes", [(12, 10, 9, 8, 7), (10, 12, 9, 8, 7)])
def test_where_one_of_the_first_two_lengths_is_the_longest_the_others_are_filled_in_all_the_same(sizes, tmp_path):
    model = Table()
    own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
    compiled, transform = compile_anew(model, tmp_path / "store")
    for length, filled in zip((*sizes, 12, 10), (0, 0, 0, 1, 2, 2, 2), strict=True):
        assert all(map(torch.equal, train(compiled, model, length), train(own, model, length)))
        assert transform.stats().programs_filled == filled
    later, counted = compile_anew(model, tmp_path / "store")
    assert all(map(torch.equal, train(later, model, 6), train(own, model, 6)))
    assert (thunder.cache_misses(later), counted.stats().programs_filled) == (0, 1)
    assert all(map(torch.equal, train(later, model, 12), train(own, model, 12)))
    assert (thunder.cache_misses(later), counted.stats().programs_loaded) == (0, 1)


def test_programs_that_are_of_no_family_are_tried_a_few_times(tmp_path, monkeypatch):
    """Each of these lengths has a program of its own kind."""
    monkeypatch.setattr(lengths, "MOST_LOOSE", 3)
    tried = []
    go_through = lengths.go_through_passes
    monkeypatch.setattr(lengths, "go_through_passes", lambda *args: tried.append(1) or go_through(*args))
    model = Program(roots)
    compiled, transform = compile_anew(model, tmp_path)
    for length in (64, 96, 65, 200, 100, 40):
        train(compiled, model, length)
    assert transform.stats().programs_filled == 0 and len(tried) <= 3


SCALE = 8
"""A number that programs read, and that may be a length by chance."""


def scaled(x, weight):
    """As many rows of a table as there are, times a number; two operations are one where there are ten rows."""
    rows = torch.ones(12, WIDTH)[: x.shape[1]]
    return x * rows * SCALE * torch.ones(x.shape[1], WIDTH) * torch.ones(10, WIDTH).sum()


def test_programs_that_read_something_else_are_of_no_family_together(tmp_path, monkeypatch):
    model, pairs = Program(scaled), []
    own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
    compiled, _ = compile_anew(model, tmp_path / "store")
    family = lengths.Family

    def note(reads, passes, known):
        pairs.append({each.sizes[0][1] for each in known})
        return family(reads, passes, known)

    monkeypatch.setattr(lengths, "Family", note)
    for length, scale in ((12, 8), (10, 8), (9, 9), (8, 8), (7, 8), (6, 8), (5, 9)):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert all(map(torch.equal, train(compiled, model, length), train(own, model, length))), length
    assert {7, 8} in pairs and all(pair <= {5, 9} or not pair & {5, 9} for pair in pairs)


def test_where_what_ranks_exchange_has_a_size_of_an_argument_passes_go_over_each_length(tmp_path, monkeypatch):
    """Where it is put depends on how much it is. Here a product stands for it."""
    monkeypatch.setattr(lengths, "exchanges", lambda symbol: symbol.sym.name == "matmul")
    model = Program(rows)
    compiled, transform = compile_anew(model, tmp_path)
    for length in (40, 41, 42):
        train(compiled, model, length)
    stats = transform.stats()
    assert stats.programs_filled == 0 and set(stats.passes_repeated) == {"a collective's bytes depend on a size"}
