"""Templates that are filled in: what they become, and that what has no number in it is there once."""

import math

from blank_programs import blank
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.accelerators.programs.general import GeneralProgram, Identity
from fusioncache.accelerators.programs.text import ProgramText, TemplateReference, TemplateUse, TraceText
from fusioncache.accelerators.sizes.sizes import Number, Operation
from fusioncache.ir import Const, Graph, Instance, NumberType, Op, Ref, TensorType
from fusioncache.template.plan import Plan

LENGTH = Number(1, "length")
RECIPROCAL = Operation("/", 1, LENGTH)
LITERALS = [0, 1, -1, 64, 0.0, -0.0, 1.0, -1.0, 1e-5, math.inf, math.nan, True, False, None, "64", "n"]


def constant(value):
    kind = "none" if value is None else type(value).__name__
    return Const(kind, value.hex() if isinstance(value, float) else str(value))


def graph_at(length, literals=()):
    """A graph with sizes and literals of all kinds, in arguments, in tuples, by name, in inputs and in outputs."""
    varying, fixed = TensorType("float32", (2, length, 64), "cuda"), TensorType("float32", (64, 64), "cuda")
    ops = (
        Op("prims.mul", (Ref(0), Ref(0)), (varying,)),
        Op("prims.mul", (Ref(1), Ref(1)), (fixed,)),
        Op(
            "prims.reshape",
            (Ref(3), (constant(2 * length), constant(64))),
            (varying, None),
            (("dim", constant(length)),),
        ),
        Op("prims.full", ((constant(length), *map(constant, literals)), constant(1 / length)), (fixed,)),
        Op("prims.other", tuple(map(constant, literals)), (fixed,), (("dim", constant(1)),)),
    )
    return Graph((varying, fixed, NumberType("float")), ops, (3, 4, 5))


def program_at(length, literals=()):
    graph = graph_at(length, literals)
    region = Graph(graph.inputs, graph.ops[::-1], graph.outputs)
    instances = [Instance(region, (0, 1, 2), (0, 1, 2), plain) for plain in (None, graph)]
    uses = tuple(TemplateUse((), Plan.INLINE, "nvfuser", instance) for instance in instances)
    context = {f"template_{n}": TemplateReference("nvfuser", (("a", 1),), graph, "", uses) for n in (1, 2)}
    computation = TraceText("computation", f"[t2] = template_1(a)\n[t3] = template_2(a, {length})\n", context)
    return ProgramText(TraceText("prologue", ""), computation, None, TraceText("epilogue", ""))


def general_at(*lengths, literals=()):
    programs = [(program_at(length, literals), {1: length}) for length in lengths]
    return GeneralProgram(programs, {LENGTH, Operation("*", 2, LENGTH), RECIPROCAL})


def fill(general, length):
    return general.fill_templates({1: length}, lambda found: {name: Identity(name, "") for name in found})[0]


@given(st.lists(st.sampled_from(LITERALS), max_size=5), st.integers(129, 10**6))
def test_the_templates_are_those_of_the_program_at_that_size(literals, length):
    general = general_at(96, 128, literals=literals)
    filled = fill(general, length)
    assert list(filled.values()) == list(blank(program_at(length, literals)).templates().values())
    # By their text as well, which tells 0.0 from -0.0 and 1 from True.
    assert repr([each.graph for each in filled.values()]) == repr([graph_at(length, literals)] * 2)


def test_what_has_no_number_that_varies_is_there_once():
    general = general_at(96, 128, literals=[64])
    one, other = fill(general, 200), fill(general, 300)
    first, second = one["template__0"].graph, other["template__0"].graph
    assert [left is right for left, right in zip(first.ops, second.ops, strict=True)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert first.ops[0].args is second.ops[0].args and first.inputs[1] is second.inputs[1]
