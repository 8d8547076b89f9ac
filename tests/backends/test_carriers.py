"""Which numbers TorchInductor is given as tensors, and in what."""

import pytest
from drawn_regions import Sketch

from fusioncache.backends.inductor.carried_region import carry_numbers
from fusioncache.ir import Const, Declined, Graph, NumberType, TensorType
from fusioncache.template.generalization import make_family

FLOAT = NumberType("float")


def tensor(*shape: int, dtype: str = "float32", device: str = "cpu") -> TensorType:
    return TensorType(dtype, shape, device)


def use(name: str, type_: TensorType, *, first: bool = False) -> list[Graph]:
    """Regions of two lengths with a number among the inputs: an operand of one operation."""
    regions = []
    for length in (6, 9):
        s = Sketch()
        its = TensorType(type_.dtype, tuple(length if size == 6 else size for size in type_.shape), type_.device)
        number, x = s.input(FLOAT), s.input(its)
        regions.append(s.graph(s.op(name, *((number, x) if first else (x, number)), type_=its)))
    return regions


def reason(regions: list[Graph]) -> str:
    with pytest.raises(Declined) as refusal:
        carry_numbers(make_family(regions).general)
    return str(refusal.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_beside_dimensions_a_number_has_all_its_digits(dtype):
    carried = carry_numbers(make_family(use("add", tensor(6, dtype=dtype))).general)
    assert carried.inputs == {0: "float64"} and carried.types[0] == tensor(dtype="float64")


def test_without_dimensions_a_number_has_the_type_of_the_result():
    regions = []
    for length in (6, 9):
        s = Sketch()
        x = s.input(tensor(length))
        total = s.op("sum", x, (0,), type_=tensor())
        regions.append(s.graph(s.op("div", total, float(length), type_=tensor()), s.op("sin", x)))
    carried = carry_numbers(make_family(regions).general)
    assert carried.numbers == {1: "float32"} and carried.types[1:] == (tensor(),)
    assert carried.places == ((0, 0),) and carried.without_numbers((20, Const("float", "x"))) == (20,)


def test_what_would_have_other_bits_is_refused():
    assert reason(use("pow", tensor(6))) == "a variable number in prims.pow"
    assert reason(use("div", tensor(6), first=True)) == "a variable number in prims.div"
    assert reason(use("add", tensor(6, device="cuda"))) == "a variable number on a GPU"
    assert reason(use("add", tensor(6, dtype="complex64"))) == "a variable number together with complex64"
    assert reason(use("mul", tensor(dtype="bfloat16"))) == "a variable number together with bfloat16"


def test_a_number_that_is_computed_with_is_refused():
    s = Sketch()
    number, x = s.input(FLOAT), s.input(tensor(6))
    twice = s.op("mul", number, 2.0, type_=FLOAT)
    assert reason([s.graph(s.op("mul", x, twice, type_=tensor(6)))]) == "a number computed from a variable number"
    s = Sketch()
    number, x = s.input(FLOAT), s.input(tensor(6))
    assert reason([s.graph(s.op("mul", x, number, type_=tensor(6)), number)]) == "a variable number is a result"


def test_a_number_beside_both_is_refused():
    s = Sketch()
    number, x, y = s.input(FLOAT), s.input(tensor(6)), s.input(tensor())
    region = s.graph(s.op("mul", x, number, type_=tensor(6)), s.op("mul", y, number, type_=tensor()))
    assert reason([region]) == "a variable number together with tensors with and without dimensions"
