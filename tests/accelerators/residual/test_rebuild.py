"""Recipes of saved sums on random forward passes, as two kinds of compilers compute them. No Thunder, no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fusioncache.accelerators.residual.rebuild import (
    APART,
    CONTRACTED,
    UNROUNDED,
    UNSAVED,
    WRITTEN,
    Forward,
    OperationLine,
    Saved,
    SumRecipe,
    recipes_of,
)
from fusioncache.ir import AS_WRITTEN, Arithmetic, TensorType

WIDE, NARROW = TensorType("float32", (4,), "cpu"), TensorType("float16", (4,), "cpu")
DROPS = Arithmetic(rounds=False, contracts_alike=True)
NUMPY = {"add": np.add, "mul": np.multiply, "sin": np.sin, "neg": np.negative}


class Pass:
    """A forward pass, written line by line."""

    def __init__(self, **inputs: TensorType):
        self.types = dict(inputs)
        self.inputs = tuple(inputs)
        self.lines: list[OperationLine] = []

    def op(self, name: str, *operands: str, call: int = 0, type_: TensorType | None = None) -> str:
        result = f"v{len(self.lines)}"
        self.types[result] = type_ or self.types[operands[0]]
        self.lines.append(OperationLine(f"prims.{name}", operands, (result,), call))
        return result

    def recipes(self, *saved: str, outputs: Sequence[str] = ()) -> tuple[SumRecipe, ...]:
        return recipes_of(self.lines, self.types, Saved(saved, self.inputs, outputs))

    def obstacle(self, recipe: SumRecipe, saved: Sequence[str], written: Sequence[str] = (), **options) -> str | None:
        arithmetic, executor = options.get("arithmetic", AS_WRITTEN), options.get("executor", lambda call: "one")
        forward = Forward(self.lines, self.types, set(saved), set(written), executor, lambda call: arithmetic)
        return forward.obstacle(recipe)


def computed(lines: Sequence[OperationLine], values: dict[str, np.ndarray], types: Mapping, *, drops: bool) -> dict:
    """Returns the values of lines, call by call; with ``drops``, values are rounded only where a call stores them."""
    inside: dict[str, np.ndarray] = {}
    for index, line in enumerate(lines):
        if index and line.call != lines[index - 1].call:
            inside = {}
        used = [inside.get(operand, values.get(operand)) for operand in line.operands]
        (result,) = line.results
        dtype = np.float32 if drops else np.dtype(types[result].dtype)
        wide = [value.astype(np.float32) for value in used]
        name = line.operation.removeprefix("prims.")
        value = wide[0] if name == "convert_element_type" else NUMPY[name](*wide)
        inside[result] = value.astype(dtype)
        values[result] = inside[result].astype(types[result].dtype)
    return values


@st.composite
def passes(draw: st.DrawFn) -> tuple[Pass, list[str]]:
    """Draws forward passes of several calls in two dtypes, with much sharing, and their saved values."""
    forward = Pass(x=WIDE, y=draw(st.sampled_from([WIDE, NARROW])), z=NARROW)
    values = list(forward.inputs)
    for call in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 8))):
            kind = draw(st.sampled_from(["sin", "neg", "mul", "add", "add", "shared", "rounded"]))
            one = draw(st.sampled_from(values[-5:] + values[:3]))
            same = [value for value in values if forward.types[value] == forward.types[one]]
            if kind in ("sin", "neg"):
                values.append(forward.op(kind, one, call=call))
            elif kind == "rounded":
                to = NARROW if forward.types[one] == WIDE else WIDE
                values.append(forward.op("convert_element_type", one, call=call, type_=to))
            elif kind == "shared":
                other = draw(st.sampled_from(same))
                for _ in range(draw(st.integers(2, 20))):
                    one, other = other, forward.op("add", one, other, call=call)
                values.append(other)
            else:
                values.append(forward.op(kind, one, draw(st.sampled_from(same)), call=call))
    saved = draw(st.lists(st.sampled_from(values[3:]), min_size=1, max_size=8, unique=True))
    return forward, [*saved, *draw(st.lists(st.sampled_from(forward.inputs), unique=True))]


@settings(max_examples=60)
@given(passes(), st.booleans(), st.integers(0, 2**32))
def test_a_recipe_gives_the_saved_sum_bit_for_bit(forward_and_saved, drops, seed):
    forward, saved = forward_and_saved
    arithmetic = DROPS if drops else AS_WRITTEN
    sound = [r for r in forward.recipes(*saved) if forward.obstacle(r, saved, arithmetic=arithmetic) is None]
    assume(sound)
    chance = np.random.default_rng(seed)
    given_ = {name: chance.standard_normal(4).astype(forward.types[name].dtype) for name in forward.inputs}
    with np.errstate(all="ignore"):
        values = computed(forward.lines, dict(given_), forward.types, drops=drops)
        for recipe in sound:
            assert set(recipe.inputs) <= set(saved)
            lines = [replace(forward.lines[index], call=0) for index in recipe.lines]
            again = computed(lines, {name: values[name] for name in recipe.inputs}, forward.types, drops=drops)
            assert np.array_equal(again[recipe.sum], values[recipe.sum], equal_nan=True)


ROUNDS = Arithmetic(rounds=True, contracts_alike=False)
OBSTACLES = {
    "none": ({}, None),
    "an input that is not saved": ({"saved": 1}, UNSAVED),
    "a compiler that drops roundings": ({"arithmetic": DROPS}, UNROUNDED),
    "a compiler that contracts": ({"arithmetic": ROUNDS}, None),
    "an input that is written": ({"written": ["x"]}, WRITTEN),
    "a sum that is written": ({"written": ["v4"]}, WRITTEN),
    "two executors": ({"executor": str}, APART),
}


@pytest.mark.parametrize(("change", "obstacle"), OBSTACLES.values(), ids=OBSTACLES)
def test_what_keeps_a_recipe_from_being_used(change, obstacle):
    """Tests ``x + round(floor(a))``, with all values saved except the rounded one."""
    forward = Pass(x=WIDE)
    a = forward.op("neg", "x")
    rounded = forward.op("convert_element_type", forward.op("floor", a, call=1), call=1, type_=NARROW)
    total = forward.op("add", "x", forward.op("convert_element_type", rounded, call=2, type_=WIDE), call=2)
    (recipe,) = forward.recipes("x", a, total)
    assert (recipe.sum, recipe.parent, recipe.inputs) == (total, "x", ("x", a))
    change = dict(change)
    assert forward.obstacle(recipe, ["x", a, total][change.pop("saved", 0) :], **change) == obstacle


@pytest.mark.parametrize(("call", "problem"), [(0, CONTRACTED), (1, None)])
def test_a_product_that_may_be_contracted_or_not(call, problem):
    forward = Pass(x=WIDE, a=WIDE)
    product = forward.op("mul", "a", "a")
    forward.op("add", "x", product, call=call)
    (recipe,) = forward.recipes("x", "a", product, "v1")
    assert forward.obstacle(recipe, ["x", "a", product, "v1"], arithmetic=ROUNDS) == problem


@pytest.mark.parametrize("adds", [40, 400])
@pytest.mark.parametrize("rounded", [False, True])
def test_it_takes_no_longer_where_each_line_is_shared_by_two(adds, rounded):
    forward = Pass(x=WIDE, w=WIDE)
    one, other = forward.op("sin", "x"), forward.op("sin", "w")
    for _ in range(adds):
        one, other = other, forward.op("add", one, other)
        for type_ in (NARROW, WIDE) if rounded else ():
            other = forward.op("convert_element_type", other, type_=type_)
    assert len(forward.recipes("x", "w", "v0", other)) == (adds == 40)
    assert not forward.recipes(other)
