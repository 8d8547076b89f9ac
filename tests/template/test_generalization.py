"""Generalizations of regions drawn by hand: their texts, their keys, and what happens when sizes fall together."""

import pytest
from drawn_regions import ENVIRONMENT, draw, draw_residual
from generalized_regions import find_values, instantiate

from fusioncache.ir import Const, Graph, Op, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.generalization import Generalization, Variable, generalize, only, write_general_graph
from fusioncache.template.key import template_key
from fusioncache.template.text import graph_text


def of(graph: Graph) -> Generalization:
    return only(canonicalize(graph).graph)


def norm(batch: int, length: int, width: int, eps: float = 1e-5) -> Generalization:
    """An RMS norm whose rows leave as one dimension."""
    shape = batch, length, width
    scale = f"broadcast_in_dim(rsqrt(add(mul(sum(mul(x, x), (2,)), 0.5), {eps})), {shape}, (0, 1))"
    product = f"mul(mul(x, {scale}), broadcast_in_dim(weight, {shape}, (2,)))"
    return of(draw(f"reshape({product}, ({batch * length}, {width}))", x=shape, weight=(width,)))


def text(generalization: Generalization) -> str:
    return graph_text(write_general_graph(generalization).graph)


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
    assert write_general_graph(general).numbers == (Variable(2),)
    assert find_values(general, norm(5, 7, 32)) == (5, 7, 35)


def test_a_number_that_varies_is_one_among_the_inputs():
    general = generalize([norm(2, 64, 32), norm(2, 64, 32, eps=1e-6)])
    assert "input %2: float\n" in text(general) and "prims.add(%6, %2)" in text(general)
    assert write_general_graph(general).graph.sizes == 0
    assert find_values(general, norm(2, 64, 32, eps=0.5)) == (Const("float", (0.5).hex()),)


def test_what_falls_together_in_all_regions_is_one_variable_until_one_tells_it_apart():
    square = generalize([norm(2, 32, 32), norm(2, 48, 48)])
    assert find_values(square, norm(2, 96, 96)) == (96, 192)
    assert find_values(square, norm(2, 96, 32)) is None
    before = text(square), hash(square)
    wide = generalize([square, norm(2, 96, 32)])
    assert wide == generalize([norm(2, 32, 32), norm(2, 48, 48), norm(2, 96, 32)])
    assert (text(square), hash(square)) == before
    assert template_key(write_general_graph(square).graph, ENVIRONMENT) != template_key(
        write_general_graph(wide).graph, ENVIRONMENT
    )
    assert instantiate(wide, find_values(wide, norm(2, 48, 48))) == instantiate(norm(2, 48, 48), ())


def test_the_key_is_that_of_the_text_whichever_regions_it_came_from():
    pairs = [((2, 64, 32), (3, 96, 32)), ((5, 7, 32), (2, 9, 32)), ((3, 32, 32), (4, 33, 32))]
    generals = [generalize([norm(*one), norm(*other)]) for one, other in pairs]
    keys = {template_key(write_general_graph(general).graph, ENVIRONMENT) for general in generals}
    assert len(keys) == 1
    alone = [template_key(write_general_graph(norm(*pairs[0][0])).graph, ENVIRONMENT)]
    assert keys.isdisjoint(alone)


def heads(queries: int, keys: int, length: int, *, keys_first: bool = False) -> Generalization:
    """Two tensors that are alike but for the number of heads, as queries and keys of grouped attention are."""
    inputs = {"q": (2, queries, length, 16), "k": (2, keys, length, 16)}
    return of(draw("sin(q)", "sin(k)", **{name: inputs[name] for name in ("kq" if keys_first else "qk")}))


def test_what_is_alike_but_for_sizes_is_ordered_by_these():
    general = generalize([heads(8, 4, 64), heads(8, 4, 96, keys_first=True)])
    assert len(general.variables) == 1
    assert find_values(general, heads(8, 4, 2)) == (2,)
    assert find_values(general, heads(4, 8, 5, keys_first=True)) == (5,)
    assert find_values(general, heads(8, 2, 64)) is None


def test_what_is_alike_but_for_numbers_is_ordered_by_these():
    def region(*numbers: float) -> Generalization:
        return of(draw(*(f"mul(sin(x{place}), {number})" for place, number in enumerate(numbers))))

    assert region(0.5, 0.25, 3.0) == region(3.0, 0.5, 0.25) == region(0.25, 3.0, 0.5)


def test_symbolic_sizes_of_a_region_stay_what_they_are():
    def region(rows: int) -> Generalization:
        type_ = TensorType("float32", (Ref(1), rows), "cpu")
        return of(Graph((type_,), (Op("prims.mul", (Ref(0), Const("float", (rows / 8).hex())), (type_,)),), (2,), 1))

    assert (
        text(generalize([region(2), region(3)]))
        == """\
input %0: float32[%2, %3] cpu
input %1: float
size %2
size %3
%4: float32[%2, %3] cpu = prims.mul(%0, %1)
output %4
"""
    )


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
