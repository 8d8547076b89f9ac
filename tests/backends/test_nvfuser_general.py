"""The definitions of regions at any sizes, without a GPU: what is symbolic, and for which other sizes they are run."""

import re
from math import inf

import fake_cuda
import pytest
import torch
from drawn_regions import draw

from fusioncache.backends.nvfuser.definition import define, describe_tensor, nvfuser_executor
from fusioncache.backends.nvfuser.general import compile_for_other_sizes, define_general, expand_results, make_arguments
from fusioncache.ir import Declined, GeneralRegion, Graph, NumberType, Op, Ref, TensorType
from fusioncache.template.generalization import make_family


@pytest.fixture(autouse=True)
def _needs_nvfuser():
    fake_cuda.find_nvfuser_executor()


def define_family(*regions: Graph) -> str:
    """Returns the definition for any sizes, of arguments that are contiguous."""
    general = make_family(list(regions)).general
    shapes = [getattr(type_, "shape", None) for type_ in regions[0].inputs]
    with fake_cuda.pretend_gpu():
        strides = [shape and torch.empty(shape, device="meta").stride() for shape in shapes]
        layouts = [shape and describe_tensor(shape, its) for shape, its in zip(shapes, strides, strict=True)]
        return repr(define_general(general, layouts))


def rows(what: str, batch: int, length: int) -> Graph:
    """A product of rows with a weight, at some sizes, and what is made of it."""
    shape = batch, length, 4
    product = f"mul(x, broadcast_in_dim(w, {shape}, (2,)))"
    made = {
        "merged": f"reshape({product}, ({batch * length}, 4))",
        "half": f"slice_prim({product}, (0, 0, 0), ({batch}, {length // 2}, 4), (1, 1, 1))",
        "padded": f"pad({product}, 0.0, ((0, 0, 0), (0, {256 - length}, 0), (0, 0, 0)))",
        "masked": f"add({product}, full({shape}, 0.5, device='cuda', dtype='float32'))",
        "scaled": f"mul({product}, {1 / length})",
    }
    return draw(made[what], device="cuda", x=shape, w=(4,))


def define_rows(what: str) -> str:
    return define_family(rows(what, 2, 8), rows(what, 3, 16))


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
    tokens, weight, found = (
        TensorType(dtype, shape, "cuda")
        for dtype, shape in (("int64", (batch, length)), ("float32", (16, 4)), ("float32", (batch, length, 4)))
    )
    return Graph((tokens, weight), (Op("torch.embedding", (Ref(0), Ref(1)), (found,)),), (2,))


def test_functions_of_torch_are_translated_as_well():
    text = define_family(look_up(2, 8), look_up(3, 16))
    assert "fd.ops.index_select(" in text and re.search(r"new_shape=\[c\d+, c\d+, 4\]", text)


def test_a_dimension_that_is_left_out_where_sizes_are_known_is_no_size():
    """A sum over all dimensions, the first of which is 1: nvFuser leaves that out where it knows the sizes."""
    regions = [
        draw(f"sum(reshape(x, (1, {length}, 4)), (0, 1, 2))", device="cuda", x=(length, 4)) for length in (8, 16)
    ]
    with fake_cuda.pretend_gpu():
        definitions = [define(region, [describe_tensor((8, 4), (4, 1))]) for region in regions]
    assert "dims=[0, 1, 2]" in define_family(*regions)
    assert not any("2" in re.findall(r"dims=.*", repr(each))[-1] for each in definitions)


def test_a_number_of_the_arithmetic_is_an_input():
    text = define_rows("scaled")
    assert len(re.findall(r"define_scalar\(None, dtype=DataType\.Double\)", text)) == 1
    assert not re.search(r"0\.125|0\.0625", text)


def test_a_number_among_the_inputs_stays_one():
    number = NumberType("float")
    text = define_family(*(draw("tanh(mul(x, n))", device="cuda", n=number, x=(length, 4)) for length in (8, 16)))
    assert len(re.findall(r"define_scalar\(None, dtype=DataType\.Double\)", text)) == 1 and "shape=[-1, 4]" in text


@pytest.mark.parametrize(
    "compute",
    [lambda one, other: one, lambda one, _: one // 2, lambda one, _: 256 - one, lambda one, other: one - other],
)
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


REGIONS = {
    "plain": lambda length: draw("tanh(x)", x=(length, 4)),
    # Rows of a batch in one dimension, which is a size of its own, and which no input may have.
    "merged": lambda length: draw(f"add(reshape(x, ({2 * length}, 4)), y)", x=(2, length, 4), y=(2 * length, 4)),
    "flattened": lambda length: draw(f"reshape(x, ({2 * length}, 4))", x=(2, length, 4)),
    # The first ten rows, and all of them; as many rows of a table as there are.
    "begun": lambda length: draw("slice_prim(x, (0, 0), (10, 4), (1, 1))", "tanh(x)", x=(length, 4)),
    "cut": lambda length: draw(f"add(x, {first_rows(length)})", x=(length, 4), table=(64, 4)),
    "widened": lambda length: draw(
        f"broadcast_in_dim({first_rows(length)}, (2, {length}, 4), (1, 2))", "tanh(x)", x=(length, 4), table=(64, 4)
    ),
}


def first_rows(length: int) -> str:
    return f"slice_prim(table, (0, 0), ({length}, 4), (1, 1))"


def generalize(name: str, *lengths: int) -> GeneralRegion:
    return make_family([REGIONS[name](length) for length in lengths or (8, 12)]).general


def ones_for(general: GeneralRegion) -> list[torch.Tensor]:
    """Arguments of the last of its regions."""
    return [torch.ones(type_.shape) for type_ in general.regions[-1].inputs]


@pytest.mark.parametrize("name", ["merged", "flattened"])
def test_sizes_grow_together(name):
    general = generalize(name)
    found = list(make_arguments(general, ones_for(general), general.values[-1]))
    assert [args[0].shape[:2] for args, _ in found] == [(2, 6), (2, 24), (2, 3)]
    assert all(set(values) == {args[0].shape[1], 2 * args[0].shape[1]} for args, values in found)


@pytest.mark.parametrize(("name", "sizes"), [("begun", [24, 96, 12]), ("cut", [24, 12, 6, 3])])
def test_sizes_with_which_torch_computes_something_else_are_left_out(name, sizes):
    general = generalize(name, 32, 48)
    made = make_arguments(general, ones_for(general), general.values[-1])
    assert [args[0].shape[0] for args, _ in made] == sizes


def test_arguments_lie_as_the_first_ones_do():
    general = generalize("plain")
    turned = torch.ones(4, 12).t()
    found = [args[0] for args, _ in make_arguments(general, [turned], general.values[-1])]
    assert found and all(x.stride() == (1, x.shape[0]) and not x.any() for x in found)
    for other in (torch.ones(12, 8)[:, :4], torch.ones(12, 1).expand(12, 4)):
        assert not list(make_arguments(general, [other], general.values[-1]))


def test_what_cannot_run_does_no_harm():
    def fail(args):
        raise RuntimeError("out of memory")

    general = generalize("plain")
    assert compile_for_other_sizes(lambda values: fail, general, ones_for(general), (12,), inf) == 0


@pytest.mark.parametrize("length", [12, 20])
def test_results_that_are_not_expanded_are_expanded(length):
    general = generalize("widened")
    args = [torch.randn(length, 4), torch.randn(64, 4)]
    unexpanded = args[1][None, :length]
    found, other = expand_results(lambda args: [unexpanded, args[0].tanh()], general, [length])(args)
    assert found.shape == (2, length, 4) and found.stride() == (0, 4, 1) and found.data_ptr() == args[1].data_ptr()
    assert torch.equal(found, unexpanded.expand(2, length, 4)) and torch.equal(other, args[0].tanh())


@pytest.mark.parametrize(
    ("shape", "length"), [((2, 12, 4), 12), ((1, 11, 4), 12), ((12, 4), 12), ((3, 12, 4), 12), ((1, 12, 4), 1)]
)
def test_results_of_other_shapes_or_of_other_arguments_stay(shape, length):
    general, made = generalize("widened"), torch.zeros(shape)
    args = [torch.randn(length, 4), torch.randn(64, 4)]
    assert expand_results(lambda args: [made, args[0].tanh()], general, [12])(args)[0] is made
