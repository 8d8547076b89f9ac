"""TorchInductor's code for any sizes: of which sources it is made, in what numbers go in, and what is loaded."""

import json
import shutil
from functools import cache
from typing import Any

import pytest
import torch
from drawn_regions import draw
from generalized_regions import find_values
from models import are_same

from fusioncache.backends.api import Compiled, GeneralFunction, Run
from fusioncache.backends.bound_symbols import FunctionSource, define_source, merge_sources
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.backends.inductor.carried_region import carry_numbers
from fusioncache.ir import Const, Declined, Graph, NumberType, TensorType
from fusioncache.template.generalization import make_family, only

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


def region(batch: int, length: int) -> Graph:
    """Rows that are computed and then listed: batch * length is the size of no input."""
    shape = batch, length, 4
    return draw(f"reshape(add(tanh(x), mul(y, 0.3)), ({batch * length}, 4))", x=shape, y=shape)


FAMILY = make_family([region(2, 6), region(3, 7)])


def arguments(batch: int, length: int) -> list[torch.Tensor]:
    """One as it comes, one whose first two dimensions lie the other way round."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch, length, 4, generator=generator)
    return [x, torch.randn(length, batch, 4, generator=generator).transpose(0, 1)]


@cache
def made() -> Compiled[GeneralFunction]:
    return Inductor().persist_general(FAMILY.general, arguments(3, 7), FAMILY.general.values[-1])


def load(signature: bytes | None = None) -> Any:
    changes = {} if signature is None else {"signature.json": signature}
    return Inductor().load_general({**(made().artifacts or {}), **changes}, FAMILY.general, arguments(2, 6))


def fit(function: Any, *sizes: int) -> Run:
    values = find_values(FAMILY.generalization, only(region(*sizes)))
    assert values is not None
    return function(arguments(*sizes), values)


@pytest.mark.parametrize("sizes", [(7, 3), (5, 33)])
def test_what_is_loaded_is_each_of_its_regions(sizes):
    assert made().reason is None and made().artifacts is not None
    args = arguments(*sizes)
    expected = Inductor().compile(region(*sizes), args)(args)
    for function in (made().run, load()):
        results = fit(function, *sizes)(args)
        assert are_same(list(results), list(expected)) and results[0].stride() == expected[0].stride()


def test_arguments_that_lie_otherwise_are_refused():
    values = find_values(FAMILY.generalization, only(region(5, 9)))
    x, y = arguments(5, 9)
    for args in ([x, x], [y, y], [x, y.contiguous()], [x[:, ::2], y], [x[:4], y[:4]]):
        with pytest.raises(Declined, match="excludes these sizes"):
            load()(args, values)


def change(**fields: Any) -> bytes:
    return json.dumps({**json.loads((made().artifacts or {})["signature.json"]), **fields}).encode()


def add_condition(condition: str) -> bytes:
    known = json.loads((made().artifacts or {})["signature.json"])["conditions"]
    assert "v2 == v0*v1" in known
    return change(conditions=[*known, condition])


def test_conditions_decide():
    """As if TorchInductor had found out that rows of up to ten are computed in another way."""
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


@pytest.mark.parametrize(
    "fields", [{"format": 3}, {"conditions": []}, {"conditions": ["v0 == 2"]}, {"conditions": "True"}]
)
def test_damaged_signatures_are_refused(fields):
    for signature in (b"{", b"[]", change(**fields)):
        with pytest.raises((Declined, ValueError), match=r"condition|signature"):
            load(signature)


@pytest.mark.parametrize("args", [[torch.randn(3, 5, dtype=torch.float64)], [torch.randn(3, 5)] * 2])
def test_code_of_another_region_is_refused(args):
    other = make_family([draw("sin(x)", x=TensorType("float64", (3, 5), "cpu"))])
    with pytest.raises(ValueError, match=r"other types|another layout"):
        Inductor().load_general(made().artifacts or {}, other.general, args)


def test_what_cannot_be_stored_is_refused_and_says_why():
    class Own(torch.Tensor):
        pass

    args = [torch.Tensor._make_subclass(Own, arg) for arg in arguments(3, 7)]
    with pytest.raises(Declined, match="an argument of type Own"):
        Inductor().persist_general(FAMILY.general, args, FAMILY.general.values[-1])


def mean(length: int) -> Graph:
    """A mean of rows, whose number is made of the length, less a number among the inputs."""
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
    """Regions of two lengths with a number among the inputs."""
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
        carry_numbers(make_family(regions).general)


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
