"""TorchInductor on the CPU: the number of its compiles, its code for any sizes, and equality of every bit."""

import functools
import json
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from drawn_regions import draw
from generalized_regions import find_values
from models import Blocks, Residual, are_same, compile_plain, compile_with, recompute, step

import fusioncache
from fusioncache.backends.api import Compiled, GeneralFunction, Run
from fusioncache.backends.bound_symbols import FunctionSource, define_source, merge_sources
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.backends.inductor.carried_region import numbers_to_tensors
from fusioncache.ir import Const, Declined, Graph, NumberType, Scope, TensorType
from fusioncache.template.generalization import make_family, single_region
from fusioncache.template.plan import FOLD_WIDTHS
from fusioncache.transform import executor

pytestmark = [
    pytest.mark.usefixtures("eager_regions"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler"),
]
EXCLUDED = "TorchInductor's code for any sizes excludes these sizes"


class Both:
    """A function compiled twice: for any sizes, and for each size alone."""

    def __init__(self, function: Callable[..., torch.Tensor]):
        (self.general, self.transform), (self.static, _) = (
            compile_with(function, backend="inductor", cache=fusioncache.Cache(store=False, record=False), sizes=sizes)
            for sizes in ("auto", "static")
        )

    def check(self, *args: torch.Tensor) -> None:
        results, expected = (one(*args) for one in (self.general, self.static))
        results, expected = ([one] if isinstance(one, torch.Tensor) else list(one) for one in (results, expected))
        assert are_same(results, expected)
        assert [result.stride() for result in results] == [other.stride() for other in expected]

    @property
    def counts(self) -> tuple[int, int, int]:
        stats = self.transform.stats()
        assert not stats.bypasses
        return stats.compiles, stats.generalizations, stats.general_hits


def softmax(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.3 + bias, -1)


def test_lengths_around_the_width_of_a_vector():
    both = Both(softmax)
    both.general(torch.randn(3, 64), torch.randn(64))  # its code is for these sizes alone
    for length in (9, 17, 1023):
        both.check(torch.randn(3, length), torch.randn(length))
    assert both.counts == (2, 1, 2)


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    # TorchInductor's cache ignores the number of threads.
    with torch._inductor.config.patch(fx_graph_cache=False):
        yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("function", "rows", "lengths", "reason"),
    [
        (torch.sum, 1, (500, 600, 700, 1500), EXCLUDED),
        (functools.partial(torch.var, dim=-1), 3, (700, 800, 900, 20_000), EXCLUDED),
        (functools.partial(torch.var, dim=0), 64, (700, 800, 900, 2000), EXCLUDED),
        (functools.partial(torch.var, dim=-1), 3, (20, 24, 31, 5), "a size below 8"),
    ],
)
def test_sums_that_threads_share_at_some_sizes_or_that_are_unrolled(function, rows, lengths, reason):
    both = Both(lambda x: function(x * 1.5))
    for length in lengths:
        both.check(torch.randn(length, rows) if rows == 64 else torch.randn(rows, length))
    assert both.counts == (3, 1, 1) and both.transform.stats().own_sizes == {reason: 1}


@pytest.mark.parametrize("layouts", ["columns", "expanded"])
def test_layouts_keep_bits_and_strides(layouts):
    both = Both(lambda a, b: (a + b).tanh() * 2)
    for length in (14, 16, 20):
        a, b = torch.randn(4, length), torch.randn(length, 4).t()
        left, right = (b, b + 1) if layouts == "columns" else (a[:1].expand(4, length), a)
        (both.check if length == 20 else both.general)(left, right)
    assert both.counts == (2, 1, 1)


def test_memory_may_be_shared_and_of_any_kind():
    both = Both(lambda a, b: (a - b * 0.5).tanh())
    for length in (14, 16):
        both.general(torch.randn(length), torch.randn(length))
    memory = torch.randn(40)
    a = memory[:20]
    both.check(a, memory[1:21])
    both.check(a, a)
    with torch.no_grad():
        for other in (torch.nn.Parameter(a), a.clone().requires_grad_(), torch._neg_view(a)):
            both.check(a, other)
    assert both.counts[0] == 2


def test_numbers_that_vary_keep_every_bit():
    """One is read from a tensor in each call; one is made of the length, for tensors with and without dimensions."""

    def compute(x: torch.Tensor, number: float, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = (x.tanh() * number + x) / number
        return scaled.mean(0) / x.shape[1], (bias * 2).sum() / (3 * x.shape[1]) - x[0]

    def function(scale: torch.Tensor, bias: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        number = scale.item()
        return tuple(result for x in inputs for result in compute(x, number, bias))

    both = Both(function)
    for length in (14, 16, 20):
        for number in (0.3, -7.0):
            scale = torch.tensor(number, dtype=torch.float64)
            kinds = (torch.randn(3, length).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64))
            (both.check if length == 20 else both.general)(scale, torch.randn(5), *kinds)
    assert both.counts == (2, 1, 1)


def test_a_size_in_the_arithmetic_of_positions_varies():
    def locate(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.shape[0]
        return x * 0.3, torch.where(places < 0, rows, 0) + places * rows, 3 * rows - places

    both = Both(locate)
    for length in (14, 16, 20, 13):
        both.check(torch.randn(length), torch.arange(-2, length))
    assert both.counts == (2, 1, 2)


def test_code_is_for_the_present_number_of_threads():
    """TorchInductor's own cache of graphs has code for any number."""
    threads, found = torch.get_num_threads(), []
    general = make_family([draw("sum(x, (0,))", x=(size,)) for size in (1200, 1300)]).general
    for count in (2, 1):
        torch.set_num_threads(count)
        found.append(Inductor().persist_general(general, [torch.ones(1200)], (1200,)).artifacts)
    torch.set_num_threads(threads)
    assert [b"num_threads(2)" in artifacts["kernels.cpp"] for artifacts in found] == [True, False]


def test_a_region_without_tensors_has_code_for_any_sizes():
    regions = [draw(f"full(({size}, {size}), True, device='cpu', dtype='bool8')") for size in (14, 16)]
    run = Inductor().persist_general(make_family(regions).general, [], (14,)).run
    assert torch.equal(run([], (20,))([])[0], torch.ones(20, 20, dtype=torch.bool))


def test_numbers_do_not_change_whether_strided_loops_are_vectorized():
    both = Both(lambda x: (x.long() * x.shape[1] + 2 * x.shape[1]).float().sin().exp())
    for length in (40, 51, 64):
        both.check((torch.randn(300, 2 * length) * 3)[:, ::2])
    assert list(both.transform.stats().own_sizes) == ["a loop that may be vectorized at known sizes only"]


def test_a_number_that_varies_is_nowhere_but_in_sums_and_products():
    both = Both(lambda x, exponent: torch.maximum(x.abs() ** exponent.item(), x * 2))
    for length in (14, 16, 20):
        both.general(torch.randn(3, length), torch.tensor(2.5, dtype=torch.float64))
    assert both.counts == (3, 0, 0)
    assert both.transform.stats().own_sizes == {"a variable number in prims.pow": 2}


def test_code_that_cannot_be_stored_is_compiled_for_each_size(monkeypatch):
    refuse = mock.Mock(side_effect=Declined("a wrapper that calls other things", Scope.STORING))
    monkeypatch.setattr("fusioncache.backends.inductor.artifacts.check_wrapper", refuse)
    both = Both(softmax)
    for length in (64, 17):
        both.check(torch.randn(3, length), torch.randn(length))
    stats = both.transform.stats()
    assert not stats.generalizations and not stats.bypasses
    assert list(stats.own_sizes) == ["a wrapper that calls other things"]


@pytest.fixture
def uncached_compiles(monkeypatch):
    """Returns a list of the regions that the executor compiles without the cache."""
    compiled, own = [], executor.inductor_function
    monkeypatch.setattr(executor, "inductor_function", lambda function: compiled.append(function) or own(function))
    monkeypatch.setattr(executor, "best_backend", lambda device: "inductor")
    return compiled


# One test for both plans, because the uncached regions take the longest to compile.
def test_bits_of_a_recomputed_stream_do_not_change(uncached_compiles):
    torch.manual_seed(3)
    model, x = Residual(3).requires_grad_(False), torch.randn(10, 10)
    with recompute():
        results = [compile_with(model, "inductor", residual=plan)[0](x) for plan in ("fold", "carry")]
        assert not uncached_compiles
        plain = compile_plain(model)(x)
    assert all(torch.equal(result, plain) for result in results)
    assert len(uncached_compiles) == 7


def test_folds_of_every_width_have_the_bits_of_one_region(uncached_compiles):
    def chain(*terms: torch.Tensor) -> torch.Tensor:
        return torch.tanh(functools.reduce(torch.add, terms))

    terms = torch.randn(1 + sum(FOLD_WIDTHS), 10, 10)
    compiled, transform = compile_with(chain, "inductor", residual="fold")
    result = compiled(*terms)
    assert transform.stats().compiles == len(FOLD_WIDTHS) + 1 and not uncached_compiles
    assert torch.equal(result, compile_plain(chain)(*terms))
    assert len(uncached_compiles) == 1


def test_training_is_bitwise_that_of_uncached_regions(uncached_compiles):
    torch.manual_seed(0)
    model, x = Blocks(2), torch.randn(5, 16)
    compiled, transform = compile_with(model, "inductor")
    result = step(compiled, model, x)
    assert are_same(result, step(compile_plain(model), model, x))
    assert transform.stats().compiles < len(uncached_compiles)
    assert not transform.stats().bypasses


def region(batch: int, length: int) -> Graph:
    """Returns a region that computes rows and flattens them: no input has the size batch * length."""
    shape = batch, length, 4
    return draw(f"reshape(add(tanh(x), mul(y, 0.3)), ({batch * length}, 4))", x=shape, y=shape)


FAMILY = make_family([region(2, 6), region(3, 7)])


def arguments(batch: int, length: int) -> list[torch.Tensor]:
    """Returns a contiguous tensor, and one with its first two dimensions swapped in memory."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch, length, 4, generator=generator)
    return [x, torch.randn(length, batch, 4, generator=generator).transpose(0, 1)]


@cache
def compile_family() -> Compiled[GeneralFunction]:
    return Inductor().persist_general(FAMILY.general, arguments(3, 7), FAMILY.general.values[-1])


def load(signature: bytes | None = None) -> Any:
    changes = {} if signature is None else {"signature.json": signature}
    return Inductor().load_general({**(compile_family().artifacts or {}), **changes}, FAMILY.general, arguments(2, 6))


def fit(function: Any, *sizes: int) -> Run:
    values = find_values(FAMILY.generalization, single_region(region(*sizes)))
    assert values is not None
    return function(arguments(*sizes), values)


@pytest.mark.parametrize("sizes", [(7, 3), (5, 33)])
def test_what_is_loaded_is_each_of_its_regions(sizes):
    assert compile_family().reason is None and compile_family().artifacts is not None
    args = arguments(*sizes)
    expected = Inductor().compile(region(*sizes), args)(args)
    for function in (compile_family().run, load()):
        results = fit(function, *sizes)(args)
        assert are_same(list(results), list(expected)) and results[0].stride() == expected[0].stride()


def test_arguments_that_lie_otherwise_are_refused():
    values = find_values(FAMILY.generalization, single_region(region(5, 9)))
    x, y = arguments(5, 9)
    for args in ([x, x], [y, y], [x, y.contiguous()], [x[:, ::2], y], [x[:4], y[:4]]):
        with pytest.raises(Declined, match="excludes these sizes"):
            load()(args, values)


def change(**fields: Any) -> bytes:
    return json.dumps({**json.loads((compile_family().artifacts or {})["signature.json"]), **fields}).encode()


def add_condition(condition: str) -> bytes:
    known = json.loads((compile_family().artifacts or {})["signature.json"])["conditions"]
    assert "v2 == v0*v1" in known
    return change(conditions=[*known, condition])


def test_conditions_decide():
    """Simulates a guard of TorchInductor by which lengths of more than ten need other code."""
    narrow = load(add_condition("v1 <= 10 and not (v1 % 6 == 3 or v1 // 3 - v0 != -2) and -v0*v1 + 49 < 0"))
    assert are_same(list(fit(narrow, 5, 10)(arguments(5, 10))), list(fit(load(), 5, 10)(arguments(5, 10))))
    with pytest.raises(Declined, match="excludes these sizes"):
        fit(narrow, 5, 11)


@pytest.mark.parametrize(
    "condition",
    [
        *("print(v0)", "v0.real", "v0 ** v1", "[v0]", "v0 if v1 else 0", "'a' == 'a'", "1.5 < v0", "lambda: 0"),
        *("(v0 := 3)", "v0 << v1", "v0 is v1", "v0 in (1, 2)", "", "v0 ==", "import os", "__import__('os')"),
        *("(" * 500, "v0 + " * 9000 + "1", "size_7_0 == v0"),
    ],
    ids=lambda condition: condition[:40],
)
def test_conditions_in_another_language_are_refused(condition):
    with pytest.raises(Declined, match="condition"):
        load(add_condition(condition))


def test_damaged_signatures_are_refused():
    conditions = [change(conditions=conditions) for conditions in ([], ["v0 == 2"], "True")]
    for signature in (b"{", b"[]", change(format=3), *conditions):
        with pytest.raises((Declined, ValueError), match=r"condition|signature"):
            load(signature)


def test_code_of_another_region_is_refused():
    other = make_family([draw("sin(x)", x=TensorType("float64", (3, 5), "cpu"))])
    for args in ([torch.randn(3, 5, dtype=torch.float64)], [torch.randn(3, 5)] * 2):
        with pytest.raises(ValueError, match=r"other types|another layout"):
            Inductor().load_general(compile_family().artifacts or {}, other.general, args)


def test_what_cannot_be_stored_is_refused_and_says_why():
    args = [arg.as_subclass(type("Own", (torch.Tensor,), {})) for arg in arguments(3, 7)]
    with pytest.raises(Declined, match="an argument of type Own"):
        Inductor().persist_general(FAMILY.general, args, FAMILY.general.values[-1])


def mean(length: int) -> Graph:
    """Returns a region: the mean of rows less an input number, where the divisor is computed from the length."""
    return draw(f"div(sum(sub(x, n), (1,)), {float(length)})", n=NumberType("float"), x=(3, length))


def test_code_with_numbers_that_vary_is_stored():
    general = make_family([mean(6), mean(9)]).general
    compiled = Inductor().persist_general(general, [0.5, torch.randn(3, 9)], general.values[-1])
    assert compiled.artifacts is not None
    x = torch.randn(3, 20)
    own = {number: list(Inductor().compile(mean(20), [number, x])([number, x])) for number in (0.5, -1e-5)}
    for function in (compiled.run, Inductor().load_general(compiled.artifacts, general, [0.5, x])):
        run = function([0.5, x], (20, Const("float", (20.0).hex())))
        for number, expected in own.items():
            assert are_same(list(run([number, x])), expected)


NUMBER = {"n": NumberType("float")}


def lengths(text: str, dtype: str = "float32", device: str = "cpu") -> list[Graph]:
    """Returns regions of two lengths with a number among the inputs."""
    return [draw(text, **NUMBER, x=TensorType(dtype, (length,), device)) for length in (6, 9)]


HALF = TensorType("bfloat16", (), "cpu")


@pytest.mark.parametrize(
    ("regions", "reason"),
    [
        (lengths("pow(x, n)"), "in prims.pow"),
        (lengths("div(n, x)"), "in prims.div"),
        (lengths("add(x, n)", device="cuda"), "on a GPU"),
        (lengths("add(x, n)", "complex64"), "together with complex64"),
        ([draw("mul(x, n)", **NUMBER, x=HALF)], "together with bfloat16"),
        ([draw("mul(x, n)", "mul(y, n)", **NUMBER, y=())], "together with tensors with and without dimensions"),
        ([draw("mul(x, n)", "n", **NUMBER)], "is a result"),
        ([draw("mul(x, mul(n, 2.0))", **NUMBER)], "a number computed from a variable number"),
    ],
)
def test_what_would_have_other_bits_is_refused(regions, reason):
    with pytest.raises(Declined, match=f"^(a variable number )?{reason}$"):
        numbers_to_tensors(make_family(regions).general)


def merge(values: list[tuple[float, ...]], *bodies: str, first: tuple[int, ...] = ()) -> FunctionSource:
    return merge_sources(
        [FunctionSource(f"def region(x):\n  return {body}", {}) for body in bodies], values, first=first
    )


@pytest.mark.parametrize(
    ("values", "first", "bodies", "args", "result"),
    [
        ([(6, 12), (9, 18)], (), ["[x, 6, (12, 8), -3]", "[x, 9, (18, 8), -3]"], (7, 14), ["x", 7, (14, 8), -3]),
        ([(4, 4.0), (6, 6.0)], (), ["(4, 4.0)", "(6, 6.0)"], (8, 8.5), (8, 8.5)),
        ([(2, 2, 5), (3, 3, 6), (3, 4, 6)], (), ["(2, 2, 5)", "(3, 3, 6)", "(3, 4, 6)"], (7, 8, 9), (7, 8, 9)),
        ([(2, 5.0, 7), (3, 6.0, 9)], (1,), ["(2, 5.0, 7)", "(3, 6.0, 9)"], (5.5, 4, 8), (4, 5.5, 8)),
    ],
)
def test_numbers_that_differ_are_the_variables(values, first, bodies, args, result):
    assert define_source(merge(values, *bodies, first=first))("x", *args) == result


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("6", other) for other in ("36", "-9", "9.0", "True", "x")),
        *(("x.sin()", "x.cos()"), ("(6, 6)", "(9,)"), ("x + 6", "x - 9"), ("f(6)", "f(n=9)")),
        ("(6, True)", "(9, False)"),
    ],
)
def test_what_is_no_value_of_a_variable_and_other_operations_are_refused(one, other):
    with pytest.raises(Declined, match="Thunder"):
        merge([(6,), (9,)], one, other)


def test_names_stand_for_the_same_things():
    one, other, third = (
        FunctionSource(f"def region(x):\n  return f(x, {number})", {"f": function})
        for number, function in ((6, len), (9, max), (9, len))
    )
    with pytest.raises(Declined, match="other operations"):
        merge_sources([one, other], [(6,), (9,)])
    assert merge_sources([one, third], [(6,), (9,)]).names == {"f": len}
