"""Regions and templates: which regions share, the contents of keys, and that a template computes its regions."""

import math
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from drawn_regions import (
    ENVIRONMENT,
    TYPE,
    Sketch,
    draw,
    draw_residual,
    evaluate,
    evaluate_folded,
    evaluate_inlined,
    make_template,
    scramble,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from random_regions import graphs

from fusioncache.ir import Const, Declined, Graph, Instance, Key, NumberType, Op, Ref, TensorType
from fusioncache.ir import keys as key_module
from fusioncache.ir.keys import INGREDIENTS, Level
from fusioncache.ir.template import encode_region
from fusioncache.template import text as text_module
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import artifact_key, graph_key, make_key, program_key_of, template_name
from fusioncache.template.plan import FOLD_WIDTHS, Plan, choose_plan, fold, fold_widths, inline
from fusioncache.template.text import read_exactly, write_graph
from fusioncache.template.writer import cut, take


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
    # Each consists of two products, of which torch and compilers contract one into the sum.
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
        types = tuple(TensorType("float32", (Ref(size), 3), "cuda") for size in sizes)
        count = len(set(sizes))
        return Graph(types, (Op("prims.add", (Ref(0), Ref(1)), types[:1]),), (2 + count,), count)

    assert key(add(2, 2)) == key(add(2, 2)) != key(add(2, 3))


def test_strings_in_attributes_are_quoted():
    odd = ["", " ", "a", "a\nb", "'", '"', "\\", "\x00", "é", "e\u0301", "%0", "constant0"]
    ops = [Op("prims.opaque", (Ref(0), Const("str", text)), (TYPE,)) for text in odd]
    assert len({key(Graph((TYPE,), (op,), (1,))) for op in ops}) == len(odd)


def draw_chain(ops: int) -> Graph:
    """Returns ``x = sin(x) + x``, repeated on one input: as deep as a graph can be, and all of it shared."""
    sines = (Op("prims.sin", (Ref(value),), (TYPE,)) for value in range(0, ops, 2))
    sums = (Op("prims.add", (Ref(value + 1), Ref(value)), (TYPE,)) for value in range(0, ops, 2))
    return Graph((TYPE,), tuple(op for pair in zip(sines, sums, strict=True) for op in pair), (ops,))


def draw_wide(ops: int) -> Graph:
    """Returns ``tanh`` of many interchangeable inputs: as much symmetry as a graph can have."""
    written = tuple(Op("prims.tanh", (Ref(value),), (TYPE,)) for value in range(ops))
    return Graph((TYPE,) * ops, written, tuple(range(ops, 2 * ops)))


@pytest.mark.parametrize("shape", [draw_chain, draw_wide, draw_residual])
def test_neither_depth_nor_symmetry_is_a_limit(shape):
    """Python's limit of nested calls is 1,000."""
    canonical, is_chain = canonicalize(shape(2_500)), shape is draw_residual
    assert (make_key(canonical.graph, {}) == key(shape(2_498))) is is_chain
    assert sum(canonical.binding.arities) == (2_500 if is_chain else 0)


def differing(one: Key, other: Key) -> list[str]:
    pairs = zip(one.ingredients, other.ingredients, strict=True)
    return [a.name for a, b in pairs if (a.text, a.digest) != (b.text, b.digest)]


@pytest.mark.parametrize(
    ("ingredient", "graph", "environment"),
    [
        ("ops", make_template("tanh"), ENVIRONMENT),
        ("constants", make_template(constant=3.0), ENVIRONMENT),
        ("attributes", make_template(dims=(1,)), ENVIRONMENT),
        *((name, make_template(), {**ENVIRONMENT, name: text + "x"}) for name, text in ENVIRONMENT.items()),
    ],
)
def test_one_ingredient_differs(ingredient, graph, environment):
    one, other = make_key(make_template(), ENVIRONMENT), make_key(graph, environment)
    assert one == make_key(make_template(), dict(ENVIRONMENT)) and one != other
    assert differing(one, other) == [ingredient]


def test_the_format_differs(monkeypatch):
    before = make_key(make_template(), {})
    assert make_key(make_template(), {}) == before
    monkeypatch.setattr(text_module, "FORMAT", "0")
    monkeypatch.setattr("fusioncache.template.key.write_graph", write_graph.__wrapped__)  # without remembered texts
    assert differing(before, make_key(make_template(), {})) == ["format"]


@pytest.mark.parametrize(
    ("ingredient", "same", "other"),
    [
        ("inputs", make_template("tanh"), make_template(type_=TensorType("float64", (2, 3), "cpu"))),
        ("ops", make_template(constant=3.0), make_template("tanh")),
        ("outputs", make_template("tanh"), make_template(both=True)),
    ],
)
def test_an_ingredient_tells_of_its_own_part(ingredient, same, other):
    texts = [write_graph(graph)[ingredient] for graph in (make_template(), same, other)]
    assert texts[0] == texts[1] != texts[2]


def test_text_decides_and_not_the_digest():
    key = make_key(make_template(), ENVIRONMENT)
    forged = Key(key.digest, key.text + " ", key.ingredients)
    assert forged != key and hash(forged) == hash(key)
    assert Key("other digest", key.text, key.ingredients) == key


OF_ARTIFACTS = "the ingredient 'device' cannot be in this key: its level is ARTIFACT"


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (graph_key, "device", OF_ARTIFACTS),
        (make_key, "vresions", "no ingredient is registered as 'vresions': add it to"),
        (make_key, "ops", "'ops' cannot be in this key"),
    ],
)
def test_keys_are_made_of_the_graph_and_of_registered_ingredients_of_their_level(make, name, reason):
    assert make(make_template(), ENVIRONMENT) == make_key(make_template(), ENVIRONMENT)
    with pytest.raises(ValueError, match=reason):
        make(make_template(), {**ENVIRONMENT, name: "1"})


def test_artifacts_are_named_by_layouts_by_the_order_where_it_shows_and_by_being_made_of_code_for_any_sizes():
    graph = draw("add(x, y)")
    instance = Instance(graph, (0, 1), (0,))
    alike, unlike = (((2, 3), (3, 1)), ((2, 3), (3, 1))), (((2, 3), (3, 1)), ((2, 3), (1, 2)))
    environment = {**ENVIRONMENT, "device": "H200"}
    key = artifact_key(graph, environment, alike, instance)
    assert key == make_key(graph, {**environment, "layout": "(2, 3) (3, 1)\n(2, 3) (3, 1)"})
    ordered = artifact_key(graph, environment, unlike, instance)
    assert ordered.texts["order"].encode() == encode_region(instance)
    assert ordered.texts.keys() - key.texts.keys() == {"order"}
    for layouts, alone in ((alike, key), (unlike, ordered)):
        one, other = (artifact_key(graph, environment, layouts, instance, of_any_sizes=True) for _ in range(2))
        assert one == other != alone == artifact_key(graph, environment, layouts, instance, of_any_sizes=False)
        assert one.texts == {**alone.texts, "sizes": "any"}


def test_the_registry_is_in_the_order_of_a_key_and_says_what_each_ingredient_means():
    everything = {name: "" for name, kind in INGREDIENTS.items() if kind.level not in (Level.GRAPH, Level.PROGRAM)}
    of_programs = {name: "" for name, kind in INGREDIENTS.items() if kind.level is Level.PROGRAM}
    texts = [*make_key(make_template(), everything).texts, *program_key_of(of_programs).texts]
    assert texts == list(INGREDIENTS)
    lines = Path(key_module.__file__).read_text().splitlines()
    for name, kind in INGREDIENTS.items():
        (place,) = [number for number, line in enumerate(lines) if line.startswith("    ") and f'("{name}", ' in line]
        assert lines[place - 1].startswith("    # ") and lines[place - 1].endswith(".")
        assert kind.follows is None or kind.follows in INGREDIENTS


NORM = draw(
    "mul(mul(add(x, branch), broadcast_in_dim("
    f"rsqrt(add(mul(sum(mul(add(x, branch), add(x, branch)), (1,)), {1 / 3}), 1e-5)), (2, 3), (0,))), "
    "broadcast_in_dim(weight, (2, 3), (1,)))",
    "add(x, branch)",
    weight=(3,),
)


def test_digests_are_these_in_every_process_and_for_every_hash_seed():
    """A changed digest means a changed format: raise FORMAT with it."""
    keys = [key(draw("sin(x)")), make_key(make_template(both=True), ENVIRONMENT), key(draw_residual(5)), key(NORM)]
    assert [each.digest for each in keys] == [
        "94bd3b773d09e03e804d68b626727a857b0a5699e493113cdcb23e2d013e2541",
        "f386831dafa965b8d2c2e61134024771b7eee4cc5d213eb331de14b4af8783ab",
        "24242dd0dfb95745c0251f715e1458e9d7ae81ac8149f95b859d87c1b5d2a5b1",
        "0514052e2e098b303950372ff4b73503bec927eeaca972436b1f8f5bd797c579",
    ]


def test_constants_and_attributes_stand_in_ingredients_of_their_own():
    parts = key(NORM).texts
    assert parts["constants"] == "float 0x1.5555555555555p-2\nfloat 0x1.4f8b588e368f1p-17"
    assert parts["attributes"].splitlines()[:3] == ["dtype 'float32'", "int '2'", "int '3'"]
    assert "constant0" in parts["ops"] and "0.333" not in parts["ops"]


@pytest.mark.parametrize(("region", "name"), [(NORM, "residual_sum_rsqrt"), (draw_residual(1), "residual_tanh")])
def test_names_say_what_a_template_does_and_which_one_it_is(region, name):
    found = key(region)
    assert template_name(canonicalize(region).graph, found) == f"{name}_{found.digest[:8]}"


def numbers(graph: Graph, seed: int) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [chance.standard_normal(type_.shape).astype(type_.dtype) for type_ in graph.inputs]


def same_bits(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    # Which NaN comes of two NaNs depends on their order; every other bit counts.
    return all(
        a.dtype == b.dtype
        and (np.isnan(a) == np.isnan(b)).all()
        and a[~np.isnan(a)].tobytes() == b[~np.isnan(b)].tobytes()
        for a, b in zip(one, other, strict=True)
    )


@settings(max_examples=100)
@given(graphs())
def test_a_canonical_graph_is_its_own_canonical_form_and_is_read_again_as_it_was_written(graph):
    once = canonicalize(graph).graph
    assert canonicalize(once).graph == once
    assert read_exactly(write_graph(graph)) == graph
    assert read_exactly(write_graph(once)) == once


@settings(max_examples=100)
@given(graphs(), st.integers())
def test_the_way_a_region_is_written_does_not_matter(graph, seed):
    try:
        expected = canonicalize(graph)
    except Declined:
        return
    found = canonicalize(scramble(graph, random.Random(seed)))
    assert make_key(found.graph, {}) == make_key(expected.graph, {})
    assert found.binding.arities == expected.binding.arities


def test_the_shorter_of_two_like_chains_is_first():
    region = draw("add(add(x, a), b)", "add(y, c)")
    found = {canonicalize(scramble(region, random.Random(seed))).binding.arities for seed in range(20)}
    assert found == {(1, 2)}


@settings(max_examples=100)
@given(graphs(), st.integers(0, 2**32))
def test_a_template_computes_what_its_region_does_bit_for_bit(graph, seed):
    inputs = numbers(graph, seed)
    canonical = canonicalize(graph)
    expected = evaluate(graph, inputs)
    assert same_bits(evaluate_inlined(canonical, inputs), expected)
    assert same_bits(evaluate_folded(canonical, inputs), expected)


def test_a_cut_lies_where_little_passes_between_two_operations():
    graph = draw("exp(sin(sum(tanh(sin(x)), (1,))))", x=(64, 64))
    assert cut(graph) == 3  # behind the sum
    head, tail = take(graph, 0, 3), take(graph, 3, 5)
    assert (head.inputs, head.outputs, tail.inputs, tail.outputs) == ((0,), (3,), (3,), (5,))
    assert tail.graph.inputs == draw("sin(x)", x=(64,)).inputs
    assert cut(draw("x")) is cut(draw("sin(x)")) is None


@given(graphs())
@settings(max_examples=30)
def test_parts_compute_what_the_whole_computes(graph):
    place = cut(graph)
    if place is None:
        return
    inputs = numbers(graph, 0)
    values = dict(enumerate(inputs))
    for part in (take(graph, 0, place), take(graph, place, len(graph.ops))):
        results = evaluate(part.graph, [values[number] for number in part.inputs])
        values.update(zip(part.outputs, results, strict=True))
    for number, expected in zip(graph.outputs, evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(values[number], expected)


STREAM = draw_residual(1)
EXACT = draw("sum(add(x, a), (1,))")
ROUNDED = draw(
    "sum(add(convert_element_type(x, 'float32'), convert_element_type(a, 'float32')), (1,))",
    **dict.fromkeys("xa", TensorType("bfloat16", (2, 3), "cpu")),
)


@pytest.mark.parametrize(
    ("graph", "arities", "seen", "plan"),
    [
        pytest.param(STREAM, (2,), [(2,)] * 40, Plan.INLINE, id="one short arity in every layer"),
        pytest.param(STREAM, (1,), [(1,), (2,)] * 40, Plan.INLINE, id="two short arities"),
        pytest.param(STREAM, (), [()], Plan.INLINE, id="no chain"),
        pytest.param(STREAM, (1,), [(1,), (2,), (3,)], Plan.FOLD, id="many arities"),
        pytest.param(STREAM, (5,), [(5,)], Plan.FOLD, id="a long chain"),
        pytest.param(STREAM, (1, 9), [(1, 9)], Plan.FOLD, id="a long chain beside a short one"),
        # A reduction's order of adding may change with its kernel, and float32 is to keep every bit.
        pytest.param(EXACT, (3,), [(1,), (2,), (3,)], Plan.INLINE, id="a reduction behind float32 terms"),
        pytest.param(ROUNDED, (3,), [(1,), (2,), (3,)], Plan.FOLD, id="a reduction behind bfloat16 terms"),
    ],
)
def test_chains_are_folded_where_they_are_long_or_of_many_arities(graph, arities, seen, plan):
    assert choose_plan(canonicalize(graph).graph, arities, seen) is plan


def test_folds_add_every_term_once_and_chains_of_up_to_32_terms_use_every_width():
    for arity in range(1, 200):
        assert sum(fold_widths(arity)) == arity and {*fold_widths(arity)} <= {*FOLD_WIDTHS}
    assert {width for arity in range(1, 33) for width in fold_widths(arity)} == set(FOLD_WIDTHS)


def test_every_core_is_the_template_of_a_region_without_adds():
    template = canonicalize(draw_residual(3)).graph
    cores = {fold(template, (arity,)).core for arity in range(1, 30)}
    assert [core.graph for core in cores] == [canonicalize(draw_residual(0)).graph]


def test_sums_of_bfloat16_terms_pass_between_folds_in_float32():
    template = canonicalize(draw_residual(3, dtype="bfloat16")).graph
    first, second = fold(template, (3,)).chains[0].folds
    assert [type_.dtype for type_ in first.graph.inputs] == ["bfloat16"] * 3
    assert [type_.dtype for type_ in second.graph.inputs] == ["float32", "bfloat16"]
    assert first.graph.ops[-1].outputs[0].dtype == second.graph.ops[-1].outputs[0].dtype == "float32"
