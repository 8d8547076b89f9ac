"""Arguments made up to compile with: they lie where they should, and their values do no harm."""

import pytest
import torch
from drawn_regions import Sketch
from store_processes import make_region

from fusioncache.accelerators.precompile.entry_compiler import make_arguments
from fusioncache.ir import Graph, NumberType, Ref, TensorType

DTYPES = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "complex64", "int64", "int32", "uint8", "bool8"]
PLACES = [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((2, 3), (8, 2)), ((2, 3), (0, 1)), ((0, 3), (3, 1)), ((), ())]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_tensor_lies_where_it_should(dtype, place):
    shape, strides = place
    (made,) = make_arguments(Graph((TensorType(dtype, shape, "cpu"),), (), (0,)), (place,))
    assert (tuple(made.shape), made.stride(), made.dtype) == (
        shape,
        strides,
        getattr(torch, dtype.replace("bool8", "bool")),
    )
    assert made.device.type == "cpu"
    if made.dtype.is_floating_point and made.numel():
        assert made.double().min() > 0.4 and made.double().max() <= 1


@pytest.mark.parametrize(("name", "value"), [("add", 1), ("take", 0), ("index_put", 0), ("embedding", 0)])
def test_integers_that_may_be_places_are_zero(name, value):
    s = Sketch()
    x, at = s.input(), s.input(TensorType("int64", (4,), "cpu"))
    graph = s.graph(s.op(name, x, at))
    assert set(make_arguments(graph, (((2, 3), (3, 1)), ((4,), (1,))))[1].tolist()) == {value}


def test_numbers_are_one_but_for_sizes():
    types = (
        *map(NumberType, ("int", "float", "bool", "complex", "int")),
        TensorType("float32", (Ref(4), Ref(6)), "cpu"),
    )
    *numbers, tensor = make_arguments(Graph(types, (), (5,), sizes=1), (None, None, None, None, None, ((7, 2), (2, 1))))
    assert numbers == [1, 1.0, True, 1 + 0j, 7]
    assert [type(number) for number in numbers] == [int, float, bool, complex, int]
    assert tuple(tensor.shape) == (7, 2)


def test_random_numbers_of_a_process_stay_as_they_are():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one, other = (make_arguments(make_region(), (((2, 3), (3, 1)),) * 2) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one[0], other[0]) and not torch.equal(one[0], one[1])
