"""Which numbers TorchInductor is given as tensors, and in what."""

import pytest
from drawn_regions import draw

from fusioncache.backends.inductor.carried_region import carry_numbers
from fusioncache.ir import Const, Declined, Graph, NumberType, TensorType
from fusioncache.template.generalization import make_family

NUMBER = {"n": NumberType("float")}


def lengths(text: str, dtype: str = "float32", device: str = "cpu") -> list[Graph]:
    """Regions of two lengths with a number among the inputs."""
    return [draw(text, **NUMBER, x=TensorType(dtype, (length,), device)) for length in (6, 9)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_beside_dimensions_a_number_has_all_its_digits(dtype):
    carried = carry_numbers(make_family(lengths("add(x, n)", dtype)).general)
    assert carried.inputs == {0: "float64"} and carried.types[0] == TensorType("float64", (), "cpu")


def test_without_dimensions_a_number_has_the_type_of_the_result():
    regions = [draw(f"div(sum(x, (0,)), {float(length)})", "sin(x)", x=(length,)) for length in (6, 9)]
    carried = carry_numbers(make_family(regions).general)
    assert carried.numbers == {1: "float32"} and carried.types[1:] == (TensorType("float32", (), "cpu"),)
    assert carried.places == ((0, 0),) and carried.without_numbers((20, Const("float", "x"))) == (20,)


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
    ],
)
def test_what_would_have_other_bits_is_refused(regions, reason):
    with pytest.raises(Declined, match=f"^a variable number {reason}$"):
        carry_numbers(make_family(regions).general)


def test_a_number_that_is_computed_with_is_refused():
    with pytest.raises(Declined, match="a number computed from a variable number"):
        carry_numbers(make_family([draw("mul(x, mul(n, 2.0))", **NUMBER)]).general)
