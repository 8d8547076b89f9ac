"""Which regions share a template, and which never do."""

import math
from collections.abc import Callable
from functools import partial, reduce

import pytest
from drawn_regions import TYPE, Sketch, draw_residual

from fusioncache.ir import Const, Declined, Graph, NumberType, Op, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline


def key(graph: Graph):
    return make_key(canonicalize(graph).graph, {})


def pair(first: str, second: str) -> Graph:
    """``first(x) * sin(second(x))``, so that no symmetry hides a difference."""
    s = Sketch()
    x = s.input()
    return s.graph(s.op("mul", s.op(first, x), s.op("sin", s.op(second, x))))


def chain(*names: str) -> Graph:
    """These functions, one after the other, of one input."""
    s = Sketch()
    value = s.input()
    for name in names:
        value = s.op(name, value)
    return s.graph(value)


def binary(name: str, *, swap: bool = False, type_: TensorType = TYPE, constant=None) -> Graph:
    s = Sketch()
    a = s.input(type_)
    b = s.input(type_) if constant is None else constant
    return s.graph(s.op(name, *((b, a) if swap else (a, b))))


def shares_commuted(name: str, first: str, second: str, dtype: str = "float32") -> bool:
    """Whether ``name(first(a), second(b))`` shares with the same whose operands are exchanged."""

    def region(step):
        s = Sketch()
        a, b = (s.input(TensorType(dtype, (2, 3), "cpu")) for _ in range(2))
        return s.graph(s.op(name, *(s.op(first, a), s.op(second, b))[::step]))

    return key(region(1)) == key(region(-1))


@pytest.mark.parametrize("name", ["add", "mul", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor"])
def test_commuted_operands_share(name):
    assert shares_commuted(name, "floor", "ceil")


@pytest.mark.parametrize(("name", "commutes"), [("add", True), ("mul", False), ("eq", True)])
def test_products_of_complex_numbers_keep_their_order(name, commutes):
    """Each is made of two products, of which torch and compilers contract one into the sum."""
    assert shares_commuted(name, "floor", "ceil", "complex64") is commutes


@pytest.mark.parametrize("name", ["sub", "div", "lt", "maximum", "minimum", "pow"])
def test_operands_of_other_ops_keep_their_order(name):
    assert not shares_commuted(name, "sin", "tanh")


@pytest.mark.parametrize("last", ["mul", "div", "exp", "tanh", "neg", "unheard_of"])
def test_an_add_of_what_may_be_two_products_does_not_commute(last):
    """A compiler contracts one of two products into the add; which one depends on their order."""

    def region(swap):
        s = Sketch()
        a, b = s.input(), s.input()
        products = [s.op("mul", a, s.op("sin", a)), s.op("mul", b, s.op("floor", b))]
        if last != "mul":
            products = [s.op(last, product) for product in products]
        return s.graph(s.op("add", *(products[::-1] if swap else products)))

    assert key(region(False)) != key(region(True))


def test_dead_ops_and_the_inputs_only_they_use_do_not_matter():
    s = Sketch()
    x, unused = s.input(), s.input()
    s.op("exp", unused)
    assert key(s.graph(s.op("sin", x))) == key(chain("sin"))


def test_an_output_with_two_names_is_one_output_of_the_template():
    s = Sketch()
    sine = s.op("sin", s.input())
    twice = canonicalize(s.graph(sine, s.op("shallow_copy", sine)))
    assert twice.graph == canonicalize(chain("sin")).graph
    assert twice.binding.outputs == (0, 0)


def test_outputs_computed_alike_stay_two_and_so_do_those_whose_views_leave():
    def region(*, twice, view):
        s = Sketch()
        x = s.input()
        sines = [s.op("sin", x), s.op("sin", x) if twice else None]
        one, other = sines[0], sines[-1] or sines[0]
        return s.graph(s.op("reshape", one, (3, 2)), s.op("reshape", other, (6,)) if view else s.op("tanh", other))

    assert key(region(twice=True, view=True)) != key(region(twice=False, view=True))
    assert key(region(twice=True, view=False)) != key(region(twice=False, view=False))
    s = Sketch()
    x = s.input()
    assert canonicalize(s.graph(s.op("sin", x), s.op("sin", x))).binding.outputs in ((0, 1), (1, 0))


def test_a_view_of_what_was_written_in_place_is_refused():
    s = Sketch()
    x = s.input()
    written = s.op("copy_", s.op("sin", x), x)
    canonicalize(s.graph(s.op("tanh", written)))
    with pytest.raises(Declined, match="a view of a value written in place"):
        canonicalize(s.graph(s.op("reshape", written, (6,))))


def test_another_name_for_what_was_written_in_place_does_not_matter():
    def region(name, *, named):
        s = Sketch()
        x = s.input()
        written = s.op("copy_", s.op("sin", x), x)
        written = s.op("shallow_copy", written) if named else written
        return s.graph(s.op(name, written, *([(6,)] if name == "reshape" else [])))

    assert key(region("tanh", named=True)) == key(region("tanh", named=False))
    with pytest.raises(Declined, match="a view of a value written in place"):
        canonicalize(region("reshape", named=True))


def test_identities_do_not_matter():
    assert key(chain("sin", "shallow_copy", "tanh")) == key(chain("sin", "tanh"))


def test_the_number_of_residual_adds_does_not_matter():
    regions = [canonicalize(draw_residual(adds)) for adds in range(1, 40)]
    assert len({make_key(region.graph, {}) for region in regions}) == 1
    assert [region.binding.arities for region in regions] == [(adds,) for adds in range(1, 40)]


def test_residual_adds_with_conversions_share_and_differ_from_those_without():
    assert key(draw_residual(2, dtype="bfloat16")) == key(draw_residual(9, dtype="bfloat16"))
    assert key(draw_residual(2, dtype="bfloat16")) != key(draw_residual(2))
    assert key(draw_residual(2, dtype="bfloat16")) != key(draw_residual(2, dtype="float16"))


def test_commuted_residual_adds_share_and_no_adds_differ_from_some():
    assert key(draw_residual(5)) == key(draw_residual(3, swap=True))
    assert key(draw_residual(0)) != key(draw_residual(1))


def changed(change: Callable[[Sketch, Ref, Ref], Ref]) -> Graph:
    s = Sketch()
    x, y = s.input(), s.input()
    return s.graph(change(s, x, y))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(pair("sin", "tanh"), pair("sin", "exp"), id="op"),
        pytest.param(
            changed(lambda s, x, y: s.op("sum", x, (0,))), changed(lambda s, x, y: s.op("sum", x, (1,))), id="attribute"
        ),
        pytest.param(binary("mul", constant=1), binary("mul", constant=1.0), id="1 and 1.0"),
        pytest.param(binary("mul", constant=1), binary("mul", constant=True), id="1 and True"),
        pytest.param(binary("mul", constant=1.0), binary("mul", constant=True), id="1.0 and True"),
        pytest.param(binary("mul", constant=0.0), binary("mul", constant=-0.0), id="0.0 and -0.0"),
        pytest.param(binary("mul", constant=2.0), binary("mul", constant=math.nextafter(2.0, 3)), id="last bit"),
        pytest.param(binary("sub", constant=2.0), binary("sub", constant=2.0, swap=True), id="side of a constant"),
        pytest.param(
            binary("mul"), binary("mul", type_=TensorType("float64", (2, 3), "cpu")), id="dtype of all values"
        ),
        pytest.param(binary("mul"), binary("mul", type_=TensorType("float32_", (2, 3), "cpu")), id="weak dtype"),
        pytest.param(binary("mul"), binary("mul", type_=TensorType("float32", (2, 4), "cpu")), id="size"),
        pytest.param(binary("mul"), binary("mul", type_=TensorType("float32", (2, 3, 1), "cpu")), id="rank"),
        pytest.param(binary("mul"), binary("mul", type_=TensorType("float32", (2, 3), "cuda")), id="device type"),
        pytest.param(
            changed(lambda s, x, y: s.op("broadcast_in_dim", x, (2, 3), (0, 1))),
            changed(lambda s, x, y: s.op("broadcast_in_dim", x, (2, 3), (1, 0))),
            id="broadcast",
        ),
        pytest.param(
            changed(lambda s, x, y: s.op("sub", x, y)),
            changed(lambda s, x, y: s.op("sub", x, x)),
            id="f(x, y) and f(x, x)",
        ),
        pytest.param(
            changed(lambda s, x, y: s.op("add", x, y)), changed(lambda s, x, y: s.op("add", x, x)), id="x + y and x + x"
        ),
        pytest.param(
            changed(lambda s, x, y: s.op("sum", x, (0,), keep=True)),
            changed(lambda s, x, y: s.op("sum", x, (0,), keep=False)),
            id="keyword",
        ),
    ],
)
def test_regions_that_differ_never_share(one, other):
    assert key(one) != key(other)


def test_equal_constants_share_whatever_their_spelling():
    assert key(binary("mul", constant=0.5)) == key(binary("mul", constant=1 / 2))
    assert key(binary("mul", constant=math.nan)) == key(binary("mul", constant=-math.nan))


def test_other_outputs_never_share():
    s = Sketch()
    x = s.input()
    inner = s.op("sin", x)
    outer = s.op("tanh", inner)
    assert len({key(s.graph(outer)), key(s.graph(inner, outer)), key(s.graph(inner))}) == 3


def test_a_partial_sum_that_is_used_elsewhere_ends_the_chain():
    def region(leaks):
        s = Sketch()
        x, a, b = s.input(), s.input(), s.input()
        partial = s.op("add", x, a)
        total = s.op("tanh", s.op("add", partial, b))
        return s.graph(total, partial) if leaks else s.graph(total)

    assert canonicalize(region(False)).binding.arities == (2,)
    assert canonicalize(region(True)).binding.arities == (1,)


def test_all_terms_of_a_chain_are_stored_in_one_dtype():
    half = TensorType("float16", TYPE.shape, TYPE.device)
    s = Sketch()
    x, a, b, c = s.input(), s.input(), s.input(half), s.input()
    total = s.op("add", s.op("add", s.op("add", x, a), s.to(b, "float32")), c)
    region = s.graph(s.op("tanh", total))
    found = canonicalize(region)
    given = tuple(region.inputs[place] for place in found.binding.arguments)
    assert inline(found.graph, found.binding.arities).inputs == given


def test_a_term_that_is_used_elsewhere_stays_in_the_core():
    s = Sketch()
    x, a, b = s.input(), s.input(), s.input()
    total = s.op("add", s.op("add", x, a), b)
    shared = canonicalize(s.graph(total, s.op("sin", b)))
    assert shared.binding.arities == (1,)


def test_a_head_that_is_used_elsewhere_keeps_its_slot():
    def region(adds):
        s = Sketch()
        x, *terms = [s.input() for _ in range(adds + 1)]
        total = reduce(partial(s.op, "add"), terms, x)
        return s.graph(s.op("mul", s.op("tanh", total), s.op("sin", x)))

    assert key(region(2)) == key(region(7))
    assert canonicalize(region(7)).binding.arities == (7,)


def test_a_computed_term_stays_in_the_core():
    s = Sketch()
    x, a, b = s.input(), s.input(), s.input()
    total = s.op("add", s.op("add", x, a), s.op("mul", b, b))
    canonical = canonicalize(s.graph(total))
    assert canonical.binding.arities == (1,)
    assert [op.name for op in canonical.graph.ops if op.name == "prims.add"] == ["prims.add"]


def test_an_output_that_is_an_input_is_refused():
    s = Sketch()
    x = s.input()
    with pytest.raises(Declined, match="an output is an input"):
        canonicalize(s.graph(s.op("sin", x), x))


def test_an_input_that_leaves_as_a_copy_is_copied():
    s = Sketch()
    x = s.input()
    canonical = canonicalize(s.graph(s.op("sin", x), s.op("shallow_copy", x)))
    assert [op.name for op in canonical.graph.ops].count("prims.shallow_copy") == 1


def test_random_ops_are_never_merged():
    def region(draws):
        s = Sketch()
        seed, offset = s.input(NumberType("int")), s.input(NumberType("int"))
        values = [s.op("uniform_philox", (2, 3), 0.0, 1.0, seed=seed, offset=offset, type_=TYPE) for _ in range(draws)]
        return s.graph(s.op("sub", values[0], values[-1]))

    assert len(canonicalize(region(2)).graph.ops) == 3
    assert key(region(1)) != key(region(2))


def symbolic(shared: bool) -> Graph:
    """Adds two tensors whose first size is symbolic: one size, or one for each."""
    sizes = (Ref(2), Ref(2)) if shared else (Ref(2), Ref(3))
    types = tuple(TensorType("float32", (size, 3), "cuda") for size in sizes)
    return Graph(types, (Op("prims.add", (Ref(0), Ref(1)), (types[0],)),), (4 if not shared else 3,), 1 + (not shared))


def test_symbolic_sizes_share_by_which_are_equal():
    assert key(symbolic(True)) == key(symbolic(True))
    assert key(symbolic(True)) != key(symbolic(False))


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


def draw_long_sum(ops: int) -> Graph:
    """``tanh`` of a sum of many inputs."""
    sums = [Op("prims.add", (Ref(ops + i - 1 if i else 0), Ref(i + 1)), (TYPE,)) for i in range(ops - 1)]
    return Graph((TYPE,) * ops, (*sums, Op("prims.tanh", (Ref(2 * ops - 2),), (TYPE,))), (2 * ops - 1,))


@pytest.mark.parametrize("shape", [draw_chain, draw_wide, draw_long_sum])
def test_neither_depth_nor_symmetry_is_a_limit(shape):
    """Python's own limit of nested calls is 1,000."""
    canonical, is_chain = canonicalize(shape(2_500)), shape is draw_long_sum
    assert (make_key(canonical.graph, {}) == key(shape(2_498))) is is_chain
    assert sum(canonical.binding.arities) == (2_499 if is_chain else 0)
