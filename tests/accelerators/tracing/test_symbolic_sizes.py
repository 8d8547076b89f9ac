"""Symbolic sizes, and which of their values Thunder's passes look at."""

import copy
import math
import operator

import pytest
import thunder
import torch
from stored_programs import compile_anew
from thunder.core import devices, dtypes
from thunder.core.proxies import TensorProxy, tensorproxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors import utils
from thunder.extend import OperatorExecutor

from fusioncache.accelerators.sizes import hooks, lengths, passes
from fusioncache.accelerators.sizes.families import Decision, describe_argument
from fusioncache.accelerators.sizes.sizes import Number, Size, SymbolicSize, evaluate, gives_float
from fusioncache.ir.errors import Declined

LENGTH = Number(1, "length")


class GuardListener:
    def __init__(self):
        self.seen = []

    def see_value(self, size, reason):
        self.seen.append((evaluate(size.expression, {1: 96}), reason))

    def see_comparison(self, symbol, left, right, outcome):
        self.seen.append((symbol, outcome))

    def refuse(self, reason):
        raise AssertionError(reason)


@pytest.fixture(name="size")
def _size():
    return SymbolicSize(96, LENGTH, GuardListener())


@pytest.mark.parametrize(
    "compute",
    [
        lambda size: size * 4 - 2 * size + size // 5 + 7 % size + size % 7,
        lambda size: 500 // size - -size + +size,
        lambda size: divmod(size, 7)[0] * divmod(size, 7)[1],
        lambda size: math.prod((2, size, size)) + sum([size, 1]),
        lambda size: math.ceil(size / 16) * 16 + math.floor(size / 7),
        lambda size: size() + 1 - 1,
    ],
)
def test_arithmetic_is_no_guard(size, compute):
    found = compute(size)
    values = {number: evaluate(found.expression, {1: number}) for number in (96, 64, 8, 257)}
    assert found.value == values[96]
    expected = {number: compute(SymbolicSize(number, LENGTH, GuardListener())).value for number in values}
    assert values == expected
    assert {kind for kind, _ in size.listener.seen} <= {"==", "<", "!="}  # checks of divisors


@pytest.mark.parametrize("kind", [Size, SymbolicSize])
@pytest.mark.parametrize(
    "compute",
    [
        lambda size: 1 / size,
        lambda size: (size - 2) / 7 + size / 3 - 2 / size,
        lambda size: -(1 / size) * 0.1 + size * (1 / 3),
        lambda size: (size / 7 // 0.25 + size / 7 % 0.3) / (size + 1),
        lambda size: 5 - 3 * (size / 7) * (size / 3),
    ],
)
def test_a_number_with_a_point_is_the_one_that_python_computes(compute, kind):
    listener = GuardListener()
    found = compute(kind(96, LENGTH, listener))
    assert isinstance(found, float)
    assert not listener.seen
    for number in (96, 3, 64, 257, 10**9 + 7):
        assert evaluate(found.expression, {1: number}).hex() == compute(number).hex()
        assert gives_float(found.expression)


def test_swapped_halves_have_the_size_of_the_whole_and_no_expression_is_long(size):
    half, part, seen = size // 2, size / 7, size.listener.seen
    for found in (size - half + half, half + (size - half), size + half - half, 1 * ((0 + size - 0) * 1 // 1)):
        assert found.expression == LENGTH and found.value == 96
    assert (part - 1 + 1).expression != part.expression and not seen
    assert (256 - size + size, (size - 1) * 0) == (256, 0)
    while not seen:
        size = size * 3 - size


def test_zero_with_a_sign_is_no_number_of_any_length(size):
    """0.0 and -0.0 compare equal, but results computed from them differ."""
    for number in (64, 200):
        found = (size - number) * 0.5
        assert not size.listener.seen
        with pytest.raises(Declined, match=r"is 0\.0"):
            evaluate(found.expression, {1: number})
    assert type((size - 96) * 0.5) is float and size.listener.seen
    assert (size - 96 == 0) and (size / 7) * 1e400 == math.inf


PARTS = [
    "{}".format, str, repr, int, float, round, math.sqrt, math.isfinite, math.trunc, "%f".__mod__, copy.copy,
    lambda part: part**2, lambda part: 2.0**part, lambda part: part.hex(), lambda part: part.is_integer(),
    lambda part: part == 96 / 7, lambda part: part < 13.8, lambda part: part * 1j, lambda part: part.real,
    lambda part: math.floor(part * 1.0), lambda part: divmod(part, 0.5)[0] > 1,
    lambda part: part != math.inf,
]  # fmt: skip
WHOLE = [
    range, list(range(200)).__getitem__, "{}".format, str, repr, int, float, math.sqrt, math.isfinite, hex,
    operator.index, "%d".__mod__, lambda size: [0] * size, lambda size: torch.empty(2, size), lambda size: size**2,
    lambda size: size**0.5, lambda size: 0.5**size,
    lambda size: size == 96.0, lambda size: size < 96.5, lambda size: size << 1, lambda size: size | 1,
    lambda size: size.bit_length(), lambda size: size.real, lambda size: round(size), copy.deepcopy, copy.copy,
    lambda size: torch.zeros(200)[:size], lambda size: bytes(size), lambda size: torch.zeros(3).reshape(size // 32),
]  # fmt: skip


@pytest.mark.parametrize(("divisor", "look"), [*((7, look) for look in PARTS), *((None, look) for look in WHOLE)])
def test_whatever_needs_the_value_is_a_look_also_in_c(size, divisor, look):
    expected, found = (look(number / divisor if divisor else number) for number in (96, size))
    assert repr(found) == repr(expected) or torch.is_tensor(found)
    assert size.listener.seen


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("other", [64, 96, 200])
def test_a_comparison_is_noted(size, compare, other):
    assert compare(size, other) is compare(96, other)
    assert compare(other, size) is compare(other, 96)
    assert ((2, size) == (2, other)) is (other == 96)
    assert len(size.listener.seen) == 3


def test_none_is_kept_by_its_hash(size):
    for keep in (hash, {}.get, {96}.__contains__, lambda each: {each: 1}):
        with pytest.raises(TypeError, match="hashed"):
            keep(size)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        y = torch.tanh(x @ self.weight)
        return (y.reshape(-1, 16) * 2.0).view(x.shape) + x.sum(1, keepdim=True)


def go_through(model, directory, shape, monkeypatch):
    """Returns the journal of the passes for a model's program, which is derived at two sizes."""
    found, own = [], passes.record_pass_guards
    monkeypatch.setattr(lengths, "record_pass_guards", lambda *args: found.append(own(*args)) or found[-1])
    compiled, transform = compile_anew(model, directory)
    for size in (shape, (shape[0] + 1, shape[1] + 32, *shape[2:])):
        compiled(torch.randn(size)).sum().backward()
    stats = transform.stats()
    assert found, (stats.passes_repeated, stats.programs_interpreted, stats.programs_refused)
    assert not stats.passes_repeated
    return found[0]


def test_passes_look_at_what_decides(tmp_path, monkeypatch):
    journal = go_through(Model(), tmp_path, (2, 64, 16), monkeypatch)
    assert set(journal.read({0: (5, 200, 16)}).values()) == {5, 200, 16}
    assert journal.check({0: (5, 200, 16)})
    for shape, reason in (((1, 200, 16), "a size is 1"), ((5, 200, 32), "may do something else: .*16")):
        with pytest.raises(Declined, match=reason):
            journal.check({0: shape})
    with pytest.raises(Declined, match="other arguments"):
        journal.check({0: (5, 200, 16), 1: (2,)})


def test_each_question_is_a_decision_of_its_own():
    def _fused_sdp_choice(asked):
        return type(asked).__name__

    def can_attend_with_cudnn(asked):
        return "attends"

    listener = passes.PassListener()
    for _ in range(2):
        answers = [listener.decide(_fused_sdp_choice, (each,)) for each in (1, 1.0, True, 2)]
        assert answers == ["int", "float", "bool", "int"]
        assert listener.decide(can_attend_with_cudnn, (1,)) == "attends"
    assert hooks.note_decision(len)("ab") == 2  # where there is no listener
    made = [repr(each.args) for each, _ in listener.decisions.values()]
    assert made == ["(1,)", "(1.0,)", "(True,)", "(2,)", "(1,)"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_question_that_is_data_is_the_one_that_thunder_asks(dtype, monkeypatch):
    asked = []
    own = utils._fused_sdp_choice
    monkeypatch.setattr(utils, "_fused_sdp_choice", lambda *args: asked.append(args) or own(*args))
    with tracectx(TraceCtx()):
        like = torch.empty(2, 4, 96, 16, dtype=getattr(torch, dtype), requires_grad=True)
        tensor = tensorproxy(like, name="x", history=None)
    args = tensor, tensor, tensor, None, 0.0, True, None
    decision = Decision("_fused_sdp_choice", tuple(map(describe_argument, args)), "")
    assert decision.answer_at({}) == str(own(*args))
    ((found, *_, number, flag, nothing),) = asked
    assert isinstance(found, TensorProxy)
    for name in ("shape", "device", "dtype", "requires_grad"):
        assert getattr(found, name) == getattr(tensor, name)
    assert (number, flag, nothing) == (0.0, True, None)
    assert flag is True
    with pytest.raises(ValueError, match="print decides nothing"):
        Decision("print", (), "").answer_at({})
    with pytest.raises(Declined, match="decided about a str"):
        describe_argument("a text")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, length: x * torch.ones(length, 16) * torch.ones(100, 16).sum(),
        lambda x, length: x * float(length) + x * 100.0,
    ],
)
def test_operations_that_may_become_the_same_are_noted(tmp_path, monkeypatch, compute):
    """Operations on the length and on 100 are common subexpressions if the length is 100."""

    class Twice(Model):
        def forward(self, x):
            return compute(super().forward(x), x.shape[1])

    journal = go_through(Twice(), tmp_path, (2, 64, 16), monkeypatch)
    assert journal.check({0: (5, 200, 16)})
    with pytest.raises(Declined, match="the same at these sizes"):
        journal.check({0: (5, 100, 16)})


@pytest.mark.parametrize("is_seen", [False, True])
def test_sizes_that_only_an_operation_that_runs_whole_sees_are_no_expressions(is_seen):
    """Attention rounds the length up like this for saved tensors that only its backward reads."""
    executor, trace = OperatorExecutor("own"), TraceCtx()

    def round_up(a):
        return TensorProxy(like=a), TensorProxy(like=a, shape=(math.ceil(a.shape[0] / 32) * 32, 4))

    forward = executor.register_operator("forward", meta=round_up, fn=None)
    backward = executor.register_operator("backward", meta=lambda a, b: TensorProxy(like=a), fn=None)
    with tracectx(trace):
        shape = passes.PassListener().make_symbols((LENGTH,), (96,))
        y, statistics = forward(TensorProxy(shape=shape, device=devices.cpu, dtype=dtypes.float32))
        backward(y, statistics)
        if is_seen:
            thunder.torch.neg(statistics)
        thunder.core.prims.python_return((y, statistics))
    found = passes.TraceSizes(iter(trace.bound_symbols))
    rounded = statistics.shape[0].expression
    assert rounded in found.in_comments and (rounded in found.expressions) == is_seen
    assert [evaluate(rounded, {1: length}) for length in (64, 65, 200)] == [64, 96, 224]
