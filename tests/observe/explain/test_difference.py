"""Pairs of keys that differ in one thing: the first sentence names that thing and nothing else."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from drawn_regions import TYPE, Sketch, draw_residual, scramble

from fusioncache.ir import Const, Graph, NumberType, Op, Ref, TensorType
from fusioncache.observe.explain.difference import ONLY_A, ONLY_B, OTHER, SAME, align, compare, explain_miss, write_rows
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.text import read_graph

ENVIRONMENT = {
    "architecture": "sm_90",
    "backend": "nvfuser",
    "layout": "(2, 3) (3, 1)",
    "options": "enable kernel_db\ndisable ",
    "versions": "nvfuser 0.2.36\ntorch 2.10.0\nthunder 0.2.6",
}
Parts = Mapping[str, str]


def parts(graph: Graph, **environment: str | None) -> Parts:
    """The ingredients of a region's key."""
    said = {**ENVIRONMENT, **environment}
    key = make_key(canonicalize(graph).graph, {name: text for name, text in said.items() if text is not None})
    return key.texts


def drawn(draw: Callable[..., Any], *types: Any) -> Parts:
    """A region of two inputs, unless told."""
    s = Sketch()
    results = draw(s, *map(s.input, types or (TYPE, TYPE)))
    return parts(s.graph(*results) if isinstance(results, tuple) else s.graph(results))


def tensor(dtype="float32", shape: tuple[Any, ...] = (2, 3), device="cpu") -> TensorType:
    return TensorType(dtype, shape, device)


def layer(name="tanh", *, constant: Any = 2.0, dims: Any = (0,), both=False, type_=TYPE) -> Graph:
    """``sum(name(x) * constant)``."""
    s = Sketch()
    value = s.op("mul", s.op(name, s.input(type_)), constant)
    total = s.op("sum", value, dims)
    return s.graph(total, value) if both else s.graph(total)


def sized(*shape: Any, sizes: int = 1) -> Parts:
    """``sin`` of an input with symbolic sizes."""
    type_ = tensor(shape=shape)
    return parts(Graph((type_,), (Op("prims.sin", (Ref(0),), (type_,)),), (1 + sizes,), sizes))


def broadcast(dims: tuple[int, ...]) -> Graph:
    s = Sketch()
    x = s.input(tensor(shape=(3,)))
    return s.graph(s.op("broadcast_in_dim", x, (3, 3), dims, type_=tensor(shape=(3, 3))))


def flat(s: Sketch, x: Ref, size: int) -> Ref:
    """The input in one dimension of this size, less as many zeros."""
    type_ = tensor(shape=(size,))
    zeros = s.op("full", (size,), 0.0, type_=type_)
    return s.op("sub", s.op("reshape", x, (size,), type_=type_), zeros)


def mixed(head: str) -> Parts:
    """Terms of one dtype, and an input beside them of another."""
    return drawn(lambda s, x, y: s.op("tanh", s.op("mul", s.to(x, "float32"), y)), tensor(head), TYPE)


BASE = parts(layer())
ENVIRONMENTS = [
    ("versions", "nvfuser 0.2.37\ntorch 2.10.0\nthunder 0.2.6", "the nvfuser version: 0.2.36 in A, 0.2.37 in B"),
    ("versions", "nvfuser 0.2.36\ntorch 2.11.0\nthunder 0.2.6", "the torch version: 2.10.0 in A, 2.11.0 in B"),
    ("versions", "nvfuser 0.2.36\ntorch 2.10.0", "the thunder version: 0.2.6 in A, none in B"),
    ("options", "enable kernel_db\ndisable fma", "the option disable: empty in A, fma in B"),
    ("architecture", "sm_80", "the architecture: sm_90 in A, sm_80 in B"),
    ("device", "H200", "the device: none in A, H200 in B"),
    ("layout", "(2, 3) (1, 2)", "the layout of input %0: (2, 3) (3, 1) in A, (2, 3) (1, 2) in B"),
]
CONSTANTS = [(2.0, 3.0), (1, 1.0), (1, True), (0.0, -0.0)]
CONSTANT = "a constant, the 2nd operand of op 2 (mul): {} in A, {} in B"
PAIRS = {
    **{named: (BASE, parts(layer(), **{name: text}), named) for name, text, named in ENVIRONMENTS},
    **{
        f"{a} and {b}": (parts(layer(constant=a)), parts(layer(constant=b)), CONSTANT.format(a, b))
        for a, b in CONSTANTS
    },
    "op": (BASE, parts(layer("sin")), "op 1: tanh in A, sin in B"),
    "op of another library": (
        drawn(lambda s, x, y: s.op("sub", x, y)),
        {**drawn(lambda s, x, y: s.op("sub", x, y)), "ops": "%2: float32[2, 3] cpu = torch.sub(%0, %1)"},
        "op 1: prims.sub in A, torch.sub in B",
    ),
    "one more op": (
        drawn(lambda s, x, y: s.op("sub", s.op("sin", x), y)),
        drawn(lambda s, x, y: s.op("sub", x, y)),
        "an op: op 1 (sin) in A, none in B",
    ),
    "one op less": (
        drawn(lambda s, x, y: s.op("sub", x, y)),
        drawn(lambda s, x, y: s.op("sub", x, s.op("exp", y))),
        "an op: none in A, op 1 (exp) in B",
    ),
    "constant and value": (
        drawn(lambda s, x, y: s.op("sub", s.op("mul", x, y), 2.0)),
        drawn(lambda s, x, y: s.op("sub", s.op("mul", x, y), x)),
        "a constant, the 2nd operand of op 2 (sub): 2.0 in A, a value in B",
    ),
    "attribute": (
        BASE,
        parts(layer(dims=(1,))),
        "an attribute, the 2nd argument of op 3 (sum): (0,) in A, (1,) in B",
    ),
    "attribute by name": (
        drawn(lambda s, x, y: s.op("div", x, y, rounding_mode=Const("str", "floor"))),
        drawn(lambda s, x, y: s.op("div", x, y, rounding_mode=Const("str", "trunc"))),
        "an attribute, rounding_mode of op 1 (div): 'floor' in A, 'trunc' in B",
    ),
    "kind of attribute": (
        drawn(lambda s, x, y: s.op("take", x, Const("dtype", "int64"))),
        drawn(lambda s, x, y: s.op("take", x, Const("torch.dtype", "int64"))),
        "an attribute, the 2nd argument of op 1 (take): dtype int64 in A, torch.dtype int64 in B",
    ),
    "dtype in the middle": (
        drawn(lambda s, x, y: s.op("sin", s.to(s.op("mul", x, y), "float64"))),
        drawn(lambda s, x, y: s.op("sin", s.to(s.op("mul", x, y), "bfloat16"))),
        "an attribute, the 2nd argument of op 2 (convert_element_type): float64 in A, bfloat16 in B",
    ),
    "dtype of an input": (mixed("bfloat16"), mixed("float16"), "the dtype of input %0: bfloat16 in A, float16 in B"),
    "dtype that needs no conversion": (
        mixed("bfloat16"),
        drawn(lambda s, x, y: s.op("tanh", s.op("mul", x, y))),
        "the dtype of input %0: bfloat16 in A, float32 in B",
    ),
    "dtype of all inputs and terms": (
        parts(draw_residual(3)),
        parts(draw_residual(3, dtype="bfloat16")),
        "the dtype of input %0: float32 in A, bfloat16 in B",
    ),
    "dtype of a result": (
        drawn(lambda s, x, y: s.op("eq", x, y, type_=tensor("bool"))),
        drawn(lambda s, x, y: s.op("eq", x, y, type_=tensor("int8"))),
        "the dtype of the result of op 1 (eq): bool in A, int8 in B",
    ),
    "rank": (BASE, parts(layer(type_=tensor(shape=(2, 3, 4)))), "the rank of input %0: 2 in A, 3 in B"),
    "size": (BASE, parts(layer(type_=tensor(shape=(2, 7)))), "the size of dimension 1 of input %0: 3 in A, 7 in B"),
    "shape": (BASE, parts(layer(type_=tensor(shape=(4, 7)))), "the shape of input %0: (2, 3) in A, (4, 7) in B"),
    "size of two inputs": (
        drawn(lambda s, x, y: s.op("sub", x, y)),
        drawn(lambda s, x, y: s.op("sub", x, y), tensor(shape=(2, 9)), tensor(shape=(2, 9))),
        "the size of dimension 1 of inputs %0 and %1: 3 in A, 9 in B",
    ),
    "size and what is divided by it": (
        drawn(lambda s, x: s.op("div", s.op("sum", x, (1,)), 4.0), tensor(shape=(2, 4))),
        drawn(lambda s, x: s.op("div", s.op("sum", x, (1,)), 8.0), tensor(shape=(2, 8))),
        "the size of dimension 1 of input %0: 4 in A, 8 in B",
    ),
    "size and the shapes that follow": (
        drawn(lambda s, x: flat(s, x, 6), tensor(shape=(2, 3))),
        drawn(lambda s, x: flat(s, x, 8), tensor(shape=(2, 4))),
        "the size of dimension 1 of input %0: 3 in A, 4 in B",
    ),
    "symbolic size": (
        sized(Ref(1), 3),
        sized(2, 3, sizes=0),
        "the size of dimension 0 of input %0: symbolic in A, 2 in B",
    ),
    "one symbolic size twice": (
        sized(Ref(1), Ref(1)),
        sized(Ref(1), Ref(2), sizes=2),
        "the inputs, line 1: input %0: float32[%1, %1] cpu in A, input %0: float32[%1, %2] cpu in B",
    ),
    "size that is broadcast": (
        BASE,
        parts(layer(type_=tensor(shape=(1, 3)))),
        "the size of dimension 0 of input %0: 2 in A, 1 in B",
    ),
    "broadcast pattern": (
        parts(broadcast((0,))),
        parts(broadcast((1,))),
        "an attribute, the 3rd argument of op 1 (broadcast_in_dim): (0,) in A, (1,) in B",
    ),
    "number or tensor": (
        drawn(lambda s, x, y: s.op("sub", x, y), TYPE, NumberType("float")),
        drawn(lambda s, x, y: s.op("sub", x, y), TYPE, NumberType("int")),
        "the type of input %0: float in A, int in B",
    ),
    "device type": (
        parts(layer(type_=tensor(device="cuda"))),
        BASE,
        "the device of input %0: cuda in A, cpu in B",
    ),
    "outputs": (BASE, parts(layer(both=True)), "an output: none in A, op 2 (mul) in B"),
    "same input twice": (
        drawn(lambda s, x, y: s.op("mul", x, x)),
        drawn(lambda s, x, y: s.op("mul", x, y)),
        "the operands of op 1 (mul): %0 and %0 in A, %0 and %1 in B",
    ),
    "order of operands": (
        drawn(lambda s, x, y: s.op("sub", s.op("sin", x), s.op("mul", x, y))),
        drawn(lambda s, x, y: s.op("sub", s.op("mul", x, y), s.op("sin", x))),
        "the operands of op 3 (sub): op 1 (sin) and op 2 (mul) in A, op 2 (mul) and op 1 (sin) in B",
    ),
    "other operand": (
        drawn(lambda s, x, y: s.op("sub", s.op("sin", x), s.op("fmod", x, y))),
        drawn(lambda s, x, y: s.op("sub", s.op("sin", y), s.op("fmod", x, y))),
        "the operands of op 2 (fmod): %0 and %1 in A, %1 and %0 in B",
    ),
    "residual chain or not": (
        drawn(lambda s, x, y: s.op("tanh", s.op("add", x, y))),
        drawn(lambda s, x, y: s.op("tanh", s.op("maximum", x, y))),
        "op 1: residual in A, maximum in B",
    ),
    "backend, and all that follows": (
        BASE,
        parts(layer(), backend="eager", options=None, architecture=None, versions="torch 2.10.0"),
        "the backend: nvfuser in A, eager in B",
    ),
    "driver": (parts(layer(), driver="12080"), parts(layer(), driver="13000"), "the driver: 12080 in A, 13000 in B"),
    "layout of another shape": (
        BASE,
        parts(layer(type_=tensor(shape=(2, 5))), layout="(2, 5) (5, 1)"),
        "the size of dimension 1 of input %0: 3 in A, 5 in B",
    ),
    "format": (BASE, {**BASE, "format": "2", "ops": "anything"}, "the format of the text: 1 in A, 2 in B"),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_one_thing_differs(pair):
    a, b, named = pair
    difference = compare(a, b)
    (change,) = difference.changes
    assert f"{change.subject}: {change.a} in A, {change.b} in B" == named
    assert difference.sizes or difference.sentence() == f"They differ in {named}."
    assert len(compare(b, a).changes) == 1


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("size", "3 in A, 7 in B"),
        ("shape", "2 in A, 4 in B; 3 in A, 7 in B"),
        ("size of two inputs", "3 in A, 9 in B"),
        ("size and the shapes that follow", "3 in A, 4 in B; 6 in A, 8 in B"),
        ("layout of another shape", "3 in A, 5 in B"),
    ],
)
def test_sizes_alone_differ(name, sizes):
    a, b, _ = PAIRS[name]
    assert compare(a, b).sentence() == f"They are the same but for sizes: {sizes}."


def test_sizes_and_something_else_differ():
    wide = tensor(shape=(2, 7))
    for other in (
        parts(layer(constant=3.0, type_=wide)),
        parts(layer("sin", type_=wide)),
        parts(layer(type_=wide), architecture="sm_80"),
        parts(layer(type_=tensor(shape=(2, 1)))),
        parts(layer(type_=tensor("float64", shape=(2, 7)))),
        parts(layer(constant=3.0)),
    ):
        assert not compare(BASE, other).sizes and compare(BASE, other).changes


def test_several_differences_are_counted():
    both = compare(BASE, parts(layer("sin", constant=3.0)))
    assert both.sentence() == "They differ in op 1: tanh in A, sin in B, and in 1 other thing."
    more = compare(BASE, parts(layer("sin", constant=3.0), architecture="sm_80"))
    assert more.sentence("here", "there") == "They differ in op 1: tanh here, sin there, and in 2 other things."
    assert [change.ingredient for change in more.changes] == ["ops", "constants", "architecture"]


def random_layer(seed: int, changed: float | None = None) -> Graph:
    """Many ops that share values, half of them commutative; perhaps with one constant changed."""
    chance = random.Random(seed)
    s = Sketch()
    values = [s.input(chance.choice([TYPE, tensor("float64")])) for _ in range(3)]
    values = [s.to(value, "float32") for value in values]
    place = chance.randrange(12)
    for number in range(24):
        name = chance.choice(["add", "mul", "sub", "fmod", "tanh", "maximum"])
        operands = [chance.choice(values[-6:]) for _ in range(1 if name == "tanh" else 2)]
        values.append(s.op(name, *operands))
        if number % 2:
            constant = chance.random() if number // 2 != place or changed is None else (chance.random(), changed)[1]
            values.append(s.op("mul", values[-1], constant))
    used = {arg.index for op in s.ops for arg in op.args if isinstance(arg, Ref)}
    return s.graph(*(value for value in values if value.index not in used))


@pytest.mark.parametrize("seed", range(25))
def test_one_constant_is_found_however_much_of_the_text_it_changes(seed):
    one, other = random_layer(seed), random_layer(seed, 7.25)
    a, b = parts(scramble(one, random.Random(seed))), parts(scramble(other, random.Random(-seed)))
    assert read_graph(a) == canonicalize(scramble(one, random.Random(seed))).graph
    changes = compare(a, b).changes
    assert [(change.ingredient, change.b) for change in changes] == [("constants", "7.25")]


def test_each_op_stands_beside_the_one_that_takes_its_place():
    other = parts(layer("sin", both=True), driver="12080")
    found = align(BASE, other)
    marked = [(row.mark, row.a.partition("  ")[0], row.b.partition("  ")[0]) for row in found if row.mark != SAME]
    assert marked == [(OTHER, "op 1", "op 1"), (ONLY_B, "", "output %2"), (ONLY_B, "", "driver: 12080")]
    assert (ONLY_A, "output %2") in [(row.mark, row.a) for row in align(other, BASE)]
    lines = list(write_rows(found, 60))
    assert all(len(line) <= 60 for line, _ in lines)
    assert lines[1] == ("op 1  %1: float32[2, 3] cpu  | op 1  %1: float32[2, 3] cpu", OTHER)


def test_the_nearest_is_one_that_differs_in_sizes_alone_behind_many_with_fewer_ingredients():
    key = {"inputs": "%0: float32[12] cpu", "ops": "%1: float32[12] cpu = sin(%0)", "attributes": "12"}
    relative = {name: text.replace("12", "8") for name, text in key.items()}
    others = [{**key, "ops": "\n".join([key["ops"]] * number)} for number in range(2, 40)]
    assert explain_miss(key, [relative, *others]).nearest == 0


def test_the_nearest_is_the_one_that_differs_least():
    far = [parts(random_layer(seed)) for seed in range(50)]
    near = [parts(layer("sin", constant=3.0)), parts(layer(constant=3.0)), parts(layer(both=True, dims=(1,)))]
    assert explain_miss(BASE, [*far, *near]).nearest == 51
    assert explain_miss(BASE, [*near, *far, parts(layer(), driver="1")]).nearest == 53
    assert explain_miss(BASE, []).nearest is None
    changed = parts(random_layer(7, 7.25))
    assert explain_miss(changed, [*near, *far]).nearest == 3 + 7
