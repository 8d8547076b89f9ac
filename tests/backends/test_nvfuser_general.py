"""The definitions of regions at any sizes, without a GPU: what is symbolic, and what Thunder's translators refuse."""

import re

import fake_cuda
import pytest
from drawn_regions import Sketch

from fusioncache.backends.nvfuser.definition import define, describe_tensor, nvfuser_executor
from fusioncache.backends.nvfuser.general import define_general
from fusioncache.ir import Const, Declined, Graph, NumberType, Op, Ref, TensorType
from fusioncache.template.generalization import make_family

HERE = Const("device", "cuda")


@pytest.fixture(autouse=True)
def _needs_nvfuser():
    fake_cuda.find_nvfuser_executor()


def tensor(*shape: int) -> TensorType:
    return TensorType("float32", shape, "cuda")


def scaled_by_input(length: int) -> Graph:
    s = Sketch()
    number, rows = s.input(NumberType("float")), s.input(tensor(length, 4))
    return s.graph(s.op("tanh", s.op("mul", rows, number, type_=tensor(length, 4)), type_=tensor(length, 4)))


class Rows:
    """A product of rows with a weight, at some sizes, and what is made of it."""

    def __init__(self, batch: int, length: int, width: int = 4):
        self.batch, self.length, self.width = batch, length, width
        self.sketch = Sketch()
        whole = tensor(batch, length, width)
        x, weight = self.sketch.input(whole), self.sketch.input(tensor(width))
        wide = self.sketch.op("broadcast_in_dim", weight, whole.shape, (2,), type_=whole)
        self.product = self.sketch.op("mul", x, wide, type_=whole)

    def draw(self, what: str) -> Graph:
        return self.sketch.graph(getattr(self, what)())

    def merged(self) -> Ref:
        shape = (self.batch * self.length, self.width)
        return self.sketch.op("reshape", self.product, shape, type_=tensor(*shape))

    def half(self) -> Ref:
        end = (self.batch, self.length // 2, self.width)
        return self.sketch.op("slice_prim", self.product, (0, 0, 0), end, (1, 1, 1), type_=tensor(*end))

    def padded(self) -> Ref:
        config = ((0, 0, 0), (0, 256 - self.length, 0), (0, 0, 0))
        return self.sketch.op("pad", self.product, 0.0, config, type_=tensor(self.batch, 256, self.width))

    def masked(self) -> Ref:
        shape = (self.batch, self.length, self.width)
        dtype = Const("dtype", "float32")
        ones = self.sketch.op("full", shape, 0.5, device=HERE, dtype=dtype, type_=tensor(*shape))
        return self.sketch.op("add", self.product, ones, type_=tensor(*shape))

    def scaled(self) -> Ref:
        shape = (self.batch, self.length, self.width)
        return self.sketch.op("mul", self.product, 1 / self.length, type_=tensor(*shape))


def define_rows(what: str) -> str:
    family = make_family([Rows(2, 8).draw(what), Rows(3, 16).draw(what)])
    with fake_cuda.pretend_gpu():
        layouts = [describe_tensor((2, 8, 4), (32, 4, 1)), describe_tensor((4,), (1,))]
        return repr(define_general(family.general, layouts))


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("merged", r"fd\.ops\.reshape\(\w+, new_shape=\[c\d+, 4\]\)"),
        ("half", r"fd\.ops\.slice\(\w+, start_indices=\[0, 0, 0\], end_indices=\[c\d+, c\d+, 4\]"),
        ("padded", r"fd\.ops\.pad\(\w+, pad_widths=\[0, 0, 0, c\d+, 0, 0\]"),
        ("masked", r"fd\.ops\.full\(shape=\[c\d+, c\d+, 4\]"),
    ],
)
def test_what_varies_is_symbolic(what, line):
    text = define_rows(what)
    assert "shape=[-1, -1, 4]" in text and re.search(line, text)


def test_a_size_that_is_none_of_an_input_is_an_input():
    assert len(re.findall(r"define_scalar\(None, dtype=DataType\.Int\)", define_rows("half"))) == 1


def look_up(batch: int, length: int) -> Graph:
    """A region with one of torch's functions, whose id is a text, where a primitive's is an enumeration's."""
    tokens, weight = TensorType("int64", (batch, length), "cuda"), tensor(16, 4)
    return Graph((tokens, weight), (Op("torch.embedding", (Ref(0), Ref(1)), (tensor(batch, length, 4),)),), (2,))


def test_functions_of_torch_are_translated_as_well():
    family = make_family([look_up(2, 8), look_up(3, 16)])
    with fake_cuda.pretend_gpu():
        layouts = [describe_tensor((2, 8), (8, 1)), describe_tensor((16, 4), (4, 1))]
        text = repr(define_general(family.general, layouts))
    assert "fd.ops.index_select(" in text and re.search(r"new_shape=\[c\d+, c\d+, 4\]", text)


def one_row(length: int) -> Graph:
    """A sum over all dimensions, the first of which is 1: nvFuser leaves that out where it knows the sizes."""
    s = Sketch()
    rows = s.op("reshape", s.input(tensor(length, 4)), (1, length, 4), type_=tensor(1, length, 4))
    return s.graph(s.op("sum", rows, (0, 1, 2), type_=tensor()))


def test_a_dimension_that_is_left_out_where_sizes_are_known_is_no_size():
    family = make_family([one_row(8), one_row(16)])
    with fake_cuda.pretend_gpu():
        definitions = [define(region, [describe_tensor((8, 4), (4, 1))]) for region in family.general.regions]
        text = repr(define_general(family.general, [describe_tensor((8, 4), (4, 1))]))
    assert "dims=[0, 1, 2]" in text
    assert not any("2" in re.findall(r"dims=.*", repr(each))[-1] for each in definitions)


def test_a_number_of_the_arithmetic_is_an_input():
    text = define_rows("scaled")
    assert len(re.findall(r"define_scalar\(None, dtype=DataType\.Double\)", text)) == 1
    assert not re.search(r"0\.125|0\.0625", text)


def test_a_number_among_the_inputs_stays_one():
    family = make_family([scaled_by_input(8), scaled_by_input(16)])
    with fake_cuda.pretend_gpu():
        text = repr(define_general(family.general, [None, describe_tensor((8, 4), (4, 1))]))
    assert len(re.findall(r"define_scalar\(None, dtype=DataType\.Double\)", text)) == 1 and "shape=[-1, 4]" in text


COMPUTED = [
    lambda one, other: one,
    lambda one, other: one // 2,
    lambda one, other: 256 - one,
    lambda one, other: one - other,
]


@pytest.mark.parametrize("compute", COMPUTED)
def test_a_translator_that_computes_with_a_size_is_refused(monkeypatch, compute):
    """Whatever numbers the regions have in common, what is made of a size is none of them."""

    def merged(a, shape, *, fd, lc_to_nv_map):
        batch, length, width = a.shape
        made = abs(compute(*(int(getattr(size, "value", size)) for size in (batch, length))))
        return fd.ops.reshape(lc_to_nv_map[a], new_shape=[made, -1, width])

    monkeypatch.setattr("fusioncache.backends.nvfuser.general.TRANSLATORS", {"RESHAPE": merged})
    with pytest.raises(Declined, match="takes for constant"):
        define_rows("merged")


def test_a_translator_that_takes_a_size_for_constant_is_refused(monkeypatch):
    def pad(a, padding_value, padding_config, *, fd, lc_to_nv_map):
        value = nvfuser_executor().getnv(padding_value, fd, lc_to_nv_map)
        return fd.ops.pad(lc_to_nv_map[a], [0, 0, 0, 248, 0, 0], value)

    monkeypatch.setattr("fusioncache.backends.nvfuser.general.TRANSLATORS", {"PAD": pad})
    with pytest.raises(Declined, match="takes for constant"):
        define_rows("padded")
