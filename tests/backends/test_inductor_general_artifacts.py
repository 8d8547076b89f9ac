"""TorchInductor's code for any sizes, loaded: the same bits as the code for each size, or nothing."""

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
from fusioncache.backends.inductor.backend import Inductor
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


def test_conditions_decide():
    """As if TorchInductor had found out that rows of up to ten are computed in another way."""
    known = json.loads((made().artifacts or {})["signature.json"])["conditions"]
    assert "v2 == v0*v1" in known
    narrow = load(change(conditions=[*known, "v1 <= 10"]))
    assert are_same(list(fit(narrow, 5, 10)(arguments(5, 10))), list(fit(load(), 5, 10)(arguments(5, 10))))
    with pytest.raises(Declined, match="excludes these sizes"):
        fit(narrow, 5, 11)


@pytest.mark.parametrize(
    "conditions",
    [
        b"{",
        b"[]",
        lambda: change(format=3),
        lambda: change(conditions=[]),
        lambda: change(conditions=["size_0_0 == v0"]),
        lambda: change(conditions=["__import__('os')"]),
        lambda: change(conditions="True"),
    ],
)
def test_damaged_conditions_are_refused(conditions):
    with pytest.raises((Declined, ValueError), match=r"condition|signature"):
        load(conditions if isinstance(conditions, bytes) else conditions())


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
