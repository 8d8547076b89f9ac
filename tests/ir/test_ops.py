"""The table of operations: every trait, stated a second time, and its errors."""

from dataclasses import fields, replace

import pytest
from drawn_regions import TYPE, draw

from fusioncache.backends.bound_symbols import symbol_named
from fusioncache.ir import Declined, Graph, NumberType, Op, Ref, Scope, TensorType, is_declined
from fusioncache.ir.ops import RESIDUAL, TABLE, OpTraits, op_traits, shaping_inputs

FUNCTIONS = (
    "abs acos acosh asin asinh atan atan2 atanh bitwise_not ceil cos cosh erf erfc exp exp2 expm1 floor isfinite log "
    "log10 log1p log2 neg reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc add bitwise_and bitwise_or "
    "bitwise_xor div eq fmod ge gt le lt maximum minimum mul ne pow remainder sub where full"
)
REDUCTIONS = "amax amin prod sum var var_mean"
FACTS = {
    "commutes": "add mul eq ne bitwise_and bitwise_or bitwise_xor",
    "identity": "shallow_copy",
    "conversion": "convert_element_type shallow_copy",
    "elementwise": f"{FUNCTIONS} broadcast_in_dim convert_element_type reshape shallow_copy squeeze transpose "
    "torch.full_like",
    "shape_only": "broadcast_in_dim reshape shallow_copy slice_prim squeeze stride_order transpose unfold view",
    "follows_types": "broadcast_in_dim convert_element_type reshape squeeze torch.full_like",
    "fusible": f"{FUNCTIONS} {REDUCTIONS} lgamma cat pad broadcast_in_dim convert_element_type reshape shallow_copy "
    "slice_prim squeeze torch.full_like transpose",
    "allocates": f"{FUNCTIONS} torch.full_like {REDUCTIONS} cat iota residual",
    "contiguous": f"{REDUCTIONS} torch.full_like cat full iota pad uniform_philox",
    "adds": "add sub",
    "passes_product": "abs neg broadcast_in_dim convert_element_type reshape slice_prim squeeze transpose",
    "never_product": "add sub eq ne lt le gt ge sum amax amin full iota maximum minimum floor ceil sign bitwise_and "
    "bitwise_or bitwise_xor residual torch.full_like",
    "reorders_sums": "sum prod var var_mean cumsum linear matmul convolution embedding_backward scatter_add "
    "index_add index_put _grouped_mm",
    "indexes": "embedding_backward index_add index_put scatter_add",
    "random": "get_and_update_rng_state multinomial randint randn uniform uniform_philox",
    "seeded": "uniform_philox",
    "writes": "copy_ update_aliases",
    "never_merged": "copy_ update_aliases get_and_update_rng_state multinomial randint randn uniform uniform_philox "
    "residual",
    "composite": "",
    "size_arguments": "broadcast_in_dim full iota pad reshape slice_prim uniform_philox",
    "integer_arguments": "add mul sub where",
    "scalar_arguments": "add div mul sub",
    "common": "add broadcast_in_dim convert_element_type full mul reshape squeeze sub transpose",
}


@pytest.mark.parametrize("trait", [field.name for field in fields(OpTraits)])
def test_the_operations_that_have_a_trait_are_these(trait):
    names = {name if name in TABLE else f"prims.{name}" for name in FACTS[trait].split()}
    assert {name for name, traits in TABLE.items() if getattr(traits, trait)} == names


INT, FLOAT, UNKNOWN = NumberType("int"), NumberType("float"), TensorType("float32", (Ref(0),), "cpu")
SUM = Op("prims.add", (Ref(0), Ref(1)), (INT,))


@pytest.mark.parametrize(
    ("graph", "shaping"),
    [
        (draw("sin(x)"), ()),
        (draw("mul(x, n)", n=INT), ()),
        (draw("sum(mul(x, n), (0,))", n=FLOAT), ()),
        (draw("sin(x)", n=INT, x=UNKNOWN), (0,)),
        (Graph((INT, TYPE), (Op("prims.broadcast_in_dim", (Ref(1), (Ref(0),), (0,)), (UNKNOWN,)),), ()), (0,)),
        (Graph((INT, INT, TYPE), (Op("prims.slice_prim", (Ref(2), (Ref(1),), (8,)), (TYPE,)),), ()), (1,)),
        (Graph((INT, INT, TYPE), (SUM, Op("prims.slice_prim", (Ref(2), (Ref(3),)), (TYPE,))), ()), (0, 1)),
    ],
)
def test_numbers_that_decide_how_tensors_lie_are_told_apart(graph, shaping):
    assert shaping_inputs(graph) == shaping


COMPOSITE = OpTraits(composite=True, reorders_sums=True)
UNKNOWN_OPERATIONS = {
    "prims.digamma": OpTraits(),
    "torch.softmax": COMPOSITE,
    "torch.__add__": COMPOSITE,
    "torch.add_": replace(COMPOSITE, writes=True),
    "torch.index_put_": replace(COMPOSITE, writes=True, indexes=True),
    "torch.rand_uniform": replace(COMPOSITE, random=True),
    "prims.gather": OpTraits(indexes=True),
    "x.rng": replace(COMPOSITE, random=True),
}


def test_the_name_of_an_unknown_operation_tells_what_it_may_do():
    assert {name: op_traits(name) for name in UNKNOWN_OPERATIONS} == UNKNOWN_OPERATIONS


def test_every_known_primitive_is_one_of_thunders():
    # Running sums are no primitive in this version.
    for name in TABLE.keys() - {RESIDUAL, "prims.cumsum"}:
        assert symbol_named(name).name == name.partition(".")[2]


def test_a_handler_takes_what_is_declined_of_its_own_scope_alone():
    declined = Declined("random numbers", Scope.GENERAL)
    declined.require(Scope.REGION, Scope.GENERAL)
    with pytest.raises(Declined) as raised:
        declined.require(Scope.REGION)
    assert raised.value is declined and str(declined) == declined.reason == "random numbers"
    assert is_declined(declined, Scope.REGION, Scope.GENERAL) and not is_declined(declined, Scope.REGION)
    assert not is_declined(ValueError("random numbers"), Scope.GENERAL)
