"""Which regions share a template, and which never do."""

import math
from functools import partial

import pytest
from drawn_regions import TYPE, Sketch, draw, draw_residual

from fusioncache.ir import Const, Declined, Graph, NumberType, Op, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline


def key(graph: Graph):
    return make_key(canonicalize(graph).graph, {})


def inputs(dtype: str = "float32", shape: tuple[int, ...] = (2, 3), device: str = "cpu"):
    return dict.fromkeys("xy", TensorType(dtype, shape, device))


COMPLEX, HALF = inputs("complex64"), partial(draw_residual, dtype="bfloat16")
SAME = {
    **{
        f"operands of {name}": (draw(f"{name}(floor(x), ceil(y))"), draw(f"{name}(ceil(y), floor(x))"))
        for name in ("add", "mul", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor")
    },
    "operands of a sum of negatives": (draw("add(neg(floor(x)), neg(y))"), draw("add(neg(y), neg(floor(x)))")),
    "operands of a complex sum": (draw("add(floor(x), y)", **COMPLEX), draw("add(y, floor(x))", **COMPLEX)),
    "dead operations and their inputs": (draw("sin(x)", unused=(2, 3)), draw("sin(x)")),
    "identities": (draw("tanh(shallow_copy(sin(x)))"), draw("tanh(sin(x))")),
    "another name for what was written in place": (
        draw("tanh(shallow_copy(copy_(sin(x), x)))"),
        draw("tanh(copy_(sin(x), x))"),
    ),
    "spelling of a constant": (draw("mul(x, 0.5)"), draw("mul(x, 5e-1)")),
    "names of the inputs": (draw("sub(sin(a), tanh(b))"), draw("sub(sin(b), tanh(a))", a=(2, 3))),
    "residual adds": (draw_residual(1), draw_residual(39)),
    "residual adds from the other side": (draw_residual(5), draw_residual(3, swap=True)),
    "residual adds of halves": (HALF(2), HALF(9)),
    "a head of a chain that is used elsewhere": (
        draw("mul(tanh(add(add(x, a), b)), sin(x))"),
        draw("mul(tanh(add(x, a)), sin(x))"),
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_regions_share_whatever_their(one, other):
    assert key(one) == key(other)


DIFFERENT = {
    **{
        f"operands of {name}": (draw(f"{name}(sin(x), tanh(y))"), draw(f"{name}(tanh(y), sin(x))"))
        for name in ("sub", "div", "lt", "maximum", "minimum", "pow")
    },
    # Each is made of two products, of which torch and compilers contract one into the sum.
    "factors of a complex product": (draw("mul(floor(x), y)", **COMPLEX), draw("mul(y, floor(x))", **COMPLEX)),
    # A compiler contracts one of two products into the add; which one depends on their order.
    **{
        f"terms of a sum, each {name} of a product": (
            draw(f"add({name}(mul(x, sin(x))), {name}(mul(y, floor(y))))"),
            draw(f"add({name}(mul(y, floor(y))), {name}(mul(x, sin(x))))"),
        )
        for name in ("shallow_copy", "div", "exp", "tanh", "neg", "unheard_of")
    },
    "operation": (draw("mul(sin(x), sin(tanh(x)))"), draw("mul(sin(x), sin(exp(x)))")),
    "attribute": (draw("sum(x, (0,))"), draw("sum(x, (1,))")),
    "keyword": (draw("sum(x, (0,), keep=True)"), draw("sum(x, (0,), keep=False)")),
    "broadcast": (draw("broadcast_in_dim(x, (2, 3), (0, 1))"), draw("broadcast_in_dim(x, (2, 3), (1, 0))")),
    "1 and 1.0": (draw("mul(x, 1)"), draw("mul(x, 1.0)")),
    "1 and True": (draw("mul(x, 1)"), draw("mul(x, True)")),
    "1.0 and True": (draw("mul(x, 1.0)"), draw("mul(x, True)")),
    "0.0 and -0.0": (draw("mul(x, 0.0)"), draw("mul(x, -0.0)")),
    "last bit": (draw("mul(x, 2.0)"), draw(f"mul(x, {math.nextafter(2.0, 3)})")),
    "side of a constant": (draw("sub(x, 2.0)"), draw("sub(2.0, x)")),
    "dtype": (draw("mul(x, y)"), draw("mul(x, y)", **inputs("float64"))),
    "weak dtype": (draw("mul(x, y)"), draw("mul(x, y)", **inputs("float32_"))),
    "size": (draw("mul(x, y)"), draw("mul(x, y)", **inputs(shape=(2, 4)))),
    "rank": (draw("mul(x, y)"), draw("mul(x, y)", **inputs(shape=(2, 3, 1)))),
    "device type": (draw("mul(x, y)"), draw("mul(x, y)", **inputs(device="cuda"))),
    "f(x, y) and f(x, x)": (draw("sub(x, y)"), draw("sub(x, x)")),
    "x + y and x + x": (draw("add(x, y)"), draw("add(x, x)")),
    "outputs": (draw("tanh(sin(x))"), draw("tanh(sin(x))", "sin(x)")),
    "output": (draw("sin(x)"), draw("tanh(sin(x))", "sin(x)")),
    "chain or none": (draw_residual(0), draw_residual(1)),
    "chain of halves": (HALF(2), draw_residual(2)),
    "chain of other halves": (HALF(2), draw_residual(2, dtype="float16")),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_regions_that_differ_never_share(one, other):
    assert key(one) != key(other)


@pytest.mark.parametrize(
    ("region", "arities"),
    [
        pytest.param(draw("tanh(add(add(x, a), b))"), (2,), id="a chain"),
        pytest.param(draw("tanh(add(add(x, a), b))", "add(x, a)"), (1,), id="a partial sum that leaves ends it"),
        pytest.param(draw("add(add(x, a), b)", "sin(b)"), (1,), id="a term that is used elsewhere stays in the core"),
        pytest.param(draw("add(add(x, a), mul(b, b))"), (1,), id="and so does a computed one"),
        pytest.param(draw("mul(tanh(add(add(x, a), b)), sin(x))"), (2,), id="a head may be used elsewhere"),
    ],
)
def test_terms_of_a_chain(region, arities):
    canonical = canonicalize(region)
    assert canonical.binding.arities == arities
    assert [op.name for op in canonical.graph.ops].count("prims.add") == 2 - sum(arities)


def test_all_terms_of_a_chain_are_stored_in_one_dtype():
    half = TensorType("float16", TYPE.shape, TYPE.device)
    region = draw("tanh(add(add(add(x, a), convert_element_type(b, 'float32')), c))", b=half)
    found = canonicalize(region)
    given = tuple(region.inputs[place] for place in found.binding.arguments)
    assert inline(found.graph, found.binding.arities).inputs == given


def test_an_output_with_two_names_is_one_output_of_the_template():
    twice = canonicalize(draw("sin(x)", "shallow_copy(sin(x))"))
    assert twice.graph == canonicalize(draw("sin(x)")).graph
    assert twice.binding.outputs == (0, 0)


@pytest.mark.parametrize("leaving", [("reshape", (6,)), ("tanh",), ()])
def test_outputs_computed_alike_stay_two_and_so_do_those_whose_views_leave(leaving):
    def region(*, twice):
        s = Sketch()
        x = s.input()
        one = s.op("sin", x)
        other = s.op("sin", x) if twice else one
        return s.graph(s.op("reshape", one, (6,)), s.op(leaving[0], other, *leaving[1:]) if leaving else other)

    assert key(region(twice=True)) != key(region(twice=False))


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        (["reshape(copy_(sin(x), x), (6,))"], "a view of a value written in place"),
        (["reshape(shallow_copy(copy_(sin(x), x)), (6,))"], "a view of a value written in place"),
        (["sin(x)", "x"], "an output is an input"),
    ],
)
def test_what_aliases_is_refused(outputs, reason):
    with pytest.raises(Declined, match=reason):
        canonicalize(draw(*outputs))


def test_an_input_that_leaves_as_a_copy_is_copied():
    canonical = canonicalize(draw("sin(x)", "shallow_copy(x)"))
    assert [op.name for op in canonical.graph.ops].count("prims.shallow_copy") == 1


def test_random_ops_are_never_merged():
    def region(draws):
        s = Sketch()
        seed, offset = s.input(NumberType("int")), s.input(NumberType("int"))
        values = [s.op("uniform_philox", (2, 3), 0.0, 1.0, seed=seed, offset=offset, type_=TYPE) for _ in range(draws)]
        return s.graph(s.op("sub", values[0], values[-1]))

    assert len(canonicalize(region(2)).graph.ops) == 3
    assert key(region(1)) != key(region(2))


def test_symbolic_sizes_share_by_which_are_equal():
    def add(*sizes):
        """Adds two tensors whose first size is symbolic."""
        types = tuple(TensorType("float32", (size, 3), "cuda") for size in sizes)
        count = len(set(sizes))
        return Graph(types, (Op("prims.add", (Ref(0), Ref(1)), types[:1]),), (2 + count,), count)

    assert key(add(Ref(2), Ref(2))) == key(add(Ref(2), Ref(2))) != key(add(Ref(2), Ref(3)))


def test_strings_in_attributes_are_quoted():
    def region(text):
        s = Sketch()
        return s.graph(s.op("opaque", s.input(), Const("str", text)))

    odd = ["", " ", "a", "a\nb", "'", '"', "\\", "\x00", "é", "e\u0301", "%0", "constant0"]
    assert len({key(region(text)) for text in odd}) == len(odd)


def draw_chain(ops: int) -> Graph:
    """``x = sin(x) + x``, again and again, on one input: as deep as a graph can be, and all of it shared."""
    sines = (Op("prims.sin", (Ref(value),), (TYPE,)) for value in range(0, ops, 2))
    sums = (Op("prims.add", (Ref(value + 1), Ref(value)), (TYPE,)) for value in range(0, ops, 2))
    return Graph((TYPE,), tuple(op for pair in zip(sines, sums, strict=True) for op in pair), (ops,))


def draw_wide(ops: int) -> Graph:
    """``tanh`` of many inputs that nothing tells apart: as much symmetry as a graph can have."""
    written = tuple(Op("prims.tanh", (Ref(value),), (TYPE,)) for value in range(ops))
    return Graph((TYPE,) * ops, written, tuple(range(ops, 2 * ops)))


@pytest.mark.parametrize("shape", [draw_chain, draw_wide, draw_residual])
def test_neither_depth_nor_symmetry_is_a_limit(shape):
    """Python's own limit of nested calls is 1,000."""
    canonical, is_chain = canonicalize(shape(2_500)), shape is draw_residual
    assert (make_key(canonical.graph, {}) == key(shape(2_498))) is is_chain
    assert sum(canonical.binding.arities) == (2_500 if is_chain else 0)
