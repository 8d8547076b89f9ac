"""Generalizations: their texts and keys, coinciding sizes, holes, and equal results."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_regions import draw, draw_residual, evaluate, scramble
from generalized_regions import find_values, instantiate
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from models import are_same
from sized_regions import Setting, Step, draw_region, evaluate_general, recipes, settings_of_sizes

from fusioncache.backends.eager import Eager
from fusioncache.cache.executable import Builder
from fusioncache.cache.generals import GeneralExecutable
from fusioncache.ir import Const, Graph, Op, Ref, TensorType
from fusioncache.ir.template import layouts_of
from fusioncache.template.canonical import canonicalize
from fusioncache.template.generalization import (
    Generalization,
    Variable,
    find_places,
    fit_holes,
    generalize,
    make_family,
    single_region,
    write_general_graph,
)
from fusioncache.template.skeleton import fill, read_holes, skeleton_of
from fusioncache.template.text import graph_text, read_exactly, write_graph


def of(graph: Graph) -> Generalization:
    return single_region(canonicalize(graph).graph)


def norm(batch: int, length: int, width: int, eps: float = 1e-5) -> Generalization:
    """Returns an RMS norm whose rows are merged into one dimension in the end."""
    shape = batch, length, width
    scale = f"broadcast_in_dim(rsqrt(add(mul(sum(mul(x, x), (2,)), 0.5), {eps})), {shape}, (0, 1))"
    product = f"mul(mul(x, {scale}), broadcast_in_dim(weight, {shape}, (2,)))"
    return of(draw(f"reshape({product}, ({batch * length}, {width}))", x=shape, weight=(width,)))


def text(generalization: Generalization) -> str:
    return graph_text(write_general_graph(generalization, find_places(generalization)))


def test_sizes_of_inputs_are_found_there_and_others_are_numbers_among_the_inputs():
    general = generalize([norm(2, 64, 32), norm(3, 96, 32)])
    assert (
        text(general)
        == """\
input %0: float32[32] cpu
input %1: float32[%3, %4, 32] cpu
input %2: int
size %3
size %4
%5: float32[%3, %4, 32] cpu = prims.broadcast_in_dim(%0, (%3, %4, 32), (2,))
%6: float32[%3, %4, 32] cpu = prims.mul(%1, %1)
%7: float32[%3, %4] cpu = prims.sum(%6, (2,))
%8: float32[%3, %4] cpu = prims.mul(%7, 0.5)
%9: float32[%3, %4] cpu = prims.add(%8, 1e-05)
%10: float32[%3, %4] cpu = prims.rsqrt(%9)
%11: float32[%3, %4, 32] cpu = prims.broadcast_in_dim(%10, (%3, %4, 32), (0, 1))
%12: float32[%3, %4, 32] cpu = prims.mul(%1, %11)
%13: float32[%3, %4, 32] cpu = prims.mul(%5, %12)
%14: float32[%2, 32] cpu = prims.reshape(%13, (%2, 32))
output %14
"""
    )
    assert find_places(general) == ((1, 0), (1, 1), None)
    assert find_values(general, norm(5, 7, 32)) == (5, 7, 35)


def test_what_falls_together_in_all_regions_is_one_variable_until_one_tells_it_apart():
    square = generalize([norm(2, 32, 32), norm(2, 48, 48)])
    assert find_values(square, norm(2, 96, 96)) == (96, 192)
    assert find_values(square, norm(2, 96, 32)) is None
    wide = generalize([square, norm(2, 96, 32)])
    assert wide == generalize([norm(2, 32, 32), norm(2, 48, 48), norm(2, 96, 32)])
    assert find_values(wide, norm(2, 5, 7)) == (7, 5, 10)


def test_symbolic_sizes_of_a_region_stay_what_they_are():
    regions = []
    for rows in (2, 3):
        type_ = TensorType("float32", (Ref(1), rows), "cpu")
        scale = Op("prims.mul", (Ref(0), Const("float", (rows / 8).hex())), (type_,))
        regions.append(of(Graph((type_,), (scale,), (2,), 1)))
    written = text(generalize(regions))
    assert written.startswith("input %0: float32[%2, %3] cpu\ninput %1: float\nsize %2\nsize %3\n")


def test_the_number_of_residual_terms_stays_a_parameter():
    def region(total: str, rows: int) -> Generalization:
        return of(draw(f"tanh({total})", **dict.fromkeys("abcd", (rows, 3))))

    general = generalize([region("add(a, b)", 2), region("add(add(a, b), c)", 4)])
    assert find_values(general, region("add(add(add(a, b), c), d)", 7)) == (7,)
    assert "%2: float32[%1, 3] cpu = residual(%0, dtype:float32)" in text(general)


@pytest.mark.parametrize("adds", [(), (0, 1)])
def test_only_regions_with_one_skeleton_are_generalized(adds):
    with pytest.raises(ValueError, match=f"{len(adds)} skeletons, where all regions should have one"):
        generalize([of(draw_residual(count)) for count in adds])
    assert find_values(generalize([norm(2, 64, 32), norm(3, 96, 32)]), of(draw_residual(0))) is None


several = st.lists(settings_of_sizes(), min_size=2, max_size=4)
quick = settings(max_examples=40)


def alike(recipe, drawn: list[Setting]) -> list[Generalization]:
    """Returns the regions of a recipe at these sizes that have the skeleton of the first one."""
    found = [of(draw_region(recipe, setting)) for setting in drawn]
    return [one for one in found if one.skeleton == found[0].skeleton]


@quick
@given(recipes(), settings_of_sizes())
def test_a_skeleton_and_what_was_in_its_holes_are_the_region(recipe, setting):
    graph = canonicalize(draw_region(recipe, setting)).graph
    assert fill(skeleton_of(graph), read_holes(graph)) == graph
    assert write_general_graph(single_region(graph), ()) == graph


@quick
@given(recipes())
def test_regions_at_sizes_in_one_order_have_the_same_size_in_the_same_hole(recipe):
    """In one order: no two sizes are equal, and everything ordered by sizes has the same order."""
    here, there = Setting(3, 11, 17, (0.1, 3.0)), Setting(4, 10, 19, (0.2, 5.0))
    one, other = (of(draw_region(recipe, setting)) for setting in (here, there))
    assert one.skeleton == other.skeleton
    meant = [{value: name for name, value in setting.sizes().items()} for setting in (here, there)]
    pairs = [pair for pair in zip(one.symbols, other.symbols, strict=True) if isinstance(pair[0], int)]
    assert [meant[0][size] for size, _ in pairs] == [meant[1][size] for _, size in pairs]


@quick
@given(recipes(), several)
def test_a_generalization_is_the_least_general_one_of_which_each_region_is_an_instance(recipe, drawn):
    regions = alike(recipe, drawn)
    general = generalize(regions)
    for one in regions:
        assert instantiate(general, find_values(general, one)) == instantiate(one, ())
    columns = list(zip(*(one.symbols for one in regions), strict=True))
    for symbol, column in zip(general.symbols, columns, strict=True):
        assert isinstance(symbol, Variable) == (len(set(column)) > 1)
    assert len(general.variables) == len({column for column in columns if len(set(column)) > 1})
    graph = write_general_graph(general, find_places(general))
    assert read_exactly(write_graph(graph)) == graph


@quick
@given(recipes(), several, st.randoms(use_true_random=False))
def test_neither_order_nor_grouping_of_the_regions_matters(recipe, drawn, chance):
    regions = alike(recipe, drawn)
    general = generalize(regions)
    assert generalize(chance.sample(regions, len(regions))) == general
    cut = chance.randint(1, len(regions))
    groups = [group for group in (regions[:cut], regions[cut:]) if group]
    assert generalize([generalize(group) for group in groups]) == general
    assert generalize([general, *regions[cut:]]) == generalize([general]) == general


@quick
@given(recipes(), settings_of_sizes(), st.integers())
def test_the_way_a_generalized_region_is_written_does_not_matter(recipe, setting, seed):
    graph = draw_region(recipe, setting)
    assert of(scramble(graph, random.Random(seed))) == of(graph)


@quick
@given(recipes(), several, settings_of_sizes(), st.data())
def test_regions_share_only_if_they_compute_the_same(recipe, drawn, setting, data):
    """Also regions at sizes that were not generalized, and regions of a recipe with one other step."""
    general = generalize(alike(recipe, drawn))
    place, step = data.draw(st.integers(0, len(recipe) - 1)), data.draw(recipes())[0]
    for steps in (recipe, [*recipe[:place], step, *recipe[place + 1 :]]):
        for one in (setting, *drawn):
            graph = draw_region(steps, one)
            canonical, chance = canonicalize(graph), np.random.default_rng(0)
            values = find_values(general, single_region(canonical.graph))
            if values is not None:
                inputs = [chance.integers(-3, 4, type_.shape).astype("float32") for type_ in graph.inputs]
                found = evaluate_general(general, values, canonical, inputs)
                assert all(map(np.array_equal, found, evaluate(graph, inputs)))


def region(text: str, type_: TensorType | None = None) -> Graph:
    """Returns the graph of an expression of ``x``, in canonical order."""
    return canonicalize(draw(text, x=type_ or (2, 3))).graph


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sin(x)", (2, 3, 2, 3)),
        ("sum(x, (0,))", (2, 3, 3)),
        ("broadcast_in_dim(x, (5, 2, 3), (1, 2))", (2, 3, 5, 2, 3, 5, 2, 3)),
        ("reshape(x, (3, 2, 1))", (2, 3, 3, 2, 3, 2)),
        ("slice_prim(x, (0, 2), (2, 3), (1, 7))", (2, 3, 2, 2, 3, 2)),
        ("pad(x, 0.5, ((0, 0, 2), (3, -1, 0)))", (2, 3, 3, 4, 5)),
        ("mul(x, full((2, 3), 0.5))", (2, 3, 2, 3, 2, 3, 2, 3)),
        ("mul(x, iota(6, start=2, step=3))", (2, 3, 6, 6, 2, 3)),
    ],
)
def test_sizes_are_holes_in_types_and_in_arguments_that_are_made_of_them(text, values):
    graph = region(text)
    assert sorted(read_holes(graph)) == sorted(values)
    assert fill(skeleton_of(graph), read_holes(graph)) == graph


def test_a_number_that_may_be_a_tensor_is_a_hole():
    for text in ("add(x, 0.1)", "mul(x, 0.1)", "sub(x, 0.1)", "div(x, 0.1)", "sub(0.1, x)"):
        assert [hole for hole in read_holes(region(text)) if isinstance(hole, Const)] == [Const("float", (0.1).hex())]


@pytest.mark.parametrize("text", ["add(x, {})", "mul({}, x)", "sub(x, {})", "where(gt(x, 0), {}, x)"])
def test_an_integer_is_a_hole_where_the_result_is_of_int64(text):
    found = {
        (dtype, number): skeleton_of(region(text.format(number), TensorType(dtype, (3,), "cpu")))
        for dtype in ("int64", "int32", "float32")
        for number in (-2, 0, 1, 5, 6)
    }
    assert len({*found.values()}) == 14 and found["int64", 5] == found["int64", 6]


NEVER_VARY = {
    "dimension": ("sum(x, (0,))", "sum(x, (1,))"),
    "dimension of 2 and more": ("sum(x, (2,))", "sum(x, (3,))"),
    "dtype": ("convert_element_type(x, 'float16')", "convert_element_type(x, 'bfloat16')"),
    "flag": ("sum(x, (0,), keep=True)", "sum(x, (0,), keep=False)"),
    "integer in arithmetic": ("mul(x, 2)", "mul(x, 3)"),
    "bool in arithmetic": ("mul(x, True)", "mul(x, False)"),
    "2 and 2.0": ("mul(x, 2)", "mul(x, 2.0)"),
    "exponent": ("pow(x, 2.0)", "pow(x, 3.0)"),
    "base": ("pow(2.0, x)", "pow(3.0, x)"),
    "numerator": ("div(2.0, x)", "div(3.0, x)"),
    "bound": ("maximum(x, 2.0)", "maximum(x, 3.0)"),
    "bound of a clamp, compared": ("gt(x, 2.0)", "gt(x, 3.0)"),
    "filled in by a mask": ("where(True, x, 2.0)", "where(True, x, 3.0)"),
    "padded with": ("pad(x, 2.0, ())", "pad(x, 3.0, ())"),
    "filled with": ("mul(x, full((2, 3), 2.0))", "mul(x, full((2, 3), 3.0))"),
    "step": ("slice_prim(x, (0,), (8,), (2,))", "slice_prim(x, (0,), (8,), (3,))"),
    "dilation": ("pad(x, 0.0, ((2, 2, 2),))", "pad(x, 0.0, ((2, 2, 3),))"),
    "cut off": ("pad(x, 0.0, ((-2, 5, 0),))", "pad(x, 0.0, ((-3, 6, 0),))"),
    "of an unknown operation": ("unheard_of(x, 8)", "unheard_of(x, 9)"),
    **{
        f"the number {number}": ("mul(x, 2.0)", f"mul(x, {number})")
        for number in (0.0, -0.0, 1.0, -1.0, math.inf, "-1e999", math.nan)
    },
}


@pytest.mark.parametrize(("one", "other"), NEVER_VARY.values(), ids=NEVER_VARY)
def test_what_never_varies(one, other):
    assert skeleton_of(region(one)) != skeleton_of(region(other))


def test_types_that_differ_in_more_than_sizes_of_2_and_more():
    shapes = (2, 3), (4, 5), (2, 3, 4), (2, 1), (0, 3), (2, 0)
    types = [TensorType("float32", shape, "cpu") for shape in shapes]
    types += [TensorType("float64", shapes[0], "cpu"), TensorType("float32", shapes[0], "cuda")]
    first, same, *others = [skeleton_of(region("sin(x)", type_)) for type_ in types]
    assert first == same
    assert all(one != other for one, other in itertools.combinations([first, *others], 2))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((2, 3, 0.5, 1, 3), "in a hole"),
        ((0, 3, 0.5, 2, 3), "in a hole"),
        ((2, 3, math.nan, 2, 3), "in a hole"),
        ((2, 3, 4, 2, 3), "in a hole for a number"),
        ((2, 0.5, 0.5, 2, 3), "in a hole for a size"),
        ((2, 3, 0.5, 2), "values for 5 holes"),
        ((2, 3, 0.5, 2, 3, 2), "values for 5 holes"),
    ],
)
def test_what_cannot_be_in_a_hole_is_refused(values, reason):
    skeleton = skeleton_of(region("mul(x, 0.5)"))
    with pytest.raises(ValueError, match=reason):
        fill(skeleton, [Const("float", value.hex()) if isinstance(value, float) else value for value in values])


def test_a_number_and_a_size_are_never_one_variable():
    assert len(generalize([of(draw(f"mul(x, {float(size)})", x=(size,))) for size in (2, 3)]).variables) == 2


MAKES = {"dtype": Const("dtype", "float32"), "device": Const("device", "cpu")}
KEYWORDS = {"prims.full": MAKES, "prims.iota": {**MAKES, "start": Const("int", "0"), "step": Const("int", "1")}}


def draw_runnable(recipe: list[Step], setting: Setting) -> Graph:
    """Returns a region that Thunder can run: drawings omit keywords that say nothing about sizes."""
    graph = draw_region(recipe, setting)
    ops = tuple(replace(op, kwargs=tuple(sorted(KEYWORDS.get(op.name, {}).items()))) for op in graph.ops)
    return replace(graph, ops=ops)


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(recipes(), st.lists(settings_of_sizes(st.sampled_from([2, 3, 4, 5, 6, 8, 12])), min_size=3, max_size=4))
def test_a_function_for_any_sizes_is_each_of_its_regions(recipe: list[Step], drawn: list[Setting]):
    graphs = list(dict.fromkeys(draw_runnable(recipe, setting) for setting in drawn))
    alike = [graph for graph in graphs if skeleton_of(graph) == skeleton_of(graphs[0])]
    assume(len(alike) > 2)
    executable, generator = GeneralExecutable(make_family(alike[:2]), Builder(Eager())), torch.Generator()
    for graph in alike:
        values = fit_holes(executable.family.generalization, single_region(graph).symbols)
        args = [torch.randn(type_.shape, generator=generator.manual_seed(0)) for type_ in graph.inputs]
        if values is not None:
            served = executable.serve(args, layouts_of(args), values)
            assert are_same(list(served.run(args)), list(Eager().compile(graph, args)(args)))
