"""Pairs of keys that differ in one thing: the first sentence names that thing and nothing else.

Keys and reads of programs are compared by line.
"""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from drawn_regions import TYPE, Sketch, make_template, scramble

from fusioncache.ir import Graph, Ref, TensorType
from fusioncache.observe.explain.difference import compare, explain_miss, find_nearest
from fusioncache.observe.explain.program_difference import compare_program_keys, compare_read, find_source_line
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
_CASES = Path(__file__).with_name("differences.txt")


def parts(graph: Graph, **environment: str | None) -> Parts:
    """Returns the ingredients of a region's key."""
    said = {**ENVIRONMENT, **environment}
    key = make_key(canonicalize(graph).graph, {name: text for name, text in said.items() if text is not None})
    return key.texts


BASE = parts(make_template("tanh"))


def _read_cases() -> Iterator[tuple[str, Parts, Parts, list[str]]]:
    """Yields title, keys and sentences of each case. A is a change of the first case, B is a change of A."""
    base: dict[str, str] = {}
    for section in _CASES.read_text().removeprefix("## ").split("\n## "):
        title, *lines = section.splitlines()
        found: dict[str, dict[str, list[str]]] = {"A": {}, "B": {}}
        for line in lines:
            if line.startswith(("A ", "B ")):
                text = found[line[0]].setdefault(line[2:], [])
            elif line.startswith("  "):
                text.append(line[2:])
        a = {**base, **{name: "\n".join(text) for name, text in found["A"].items()}}
        b = {**a, **{name: "\n".join(text) for name, text in found["B"].items()}}
        base = base or a
        sentences = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
        yield title, *({name: text for name, text in key.items() if text != "(absent)"} for key in (a, b)), sentences


def _list_cases() -> list[Any]:
    first, *cases = _read_cases()
    assert first[1] == BASE
    return [pytest.param(*case, id=title) for title, *case in cases]


@pytest.mark.parametrize(("a", "b", "sentences"), _list_cases())
def test_one_thing_differs(a, b, sentences):
    difference = compare(a, b)
    (change,) = difference.changes
    named = f"{change.subject}: {change.a} in A, {change.b} in B"
    assert [difference.sentence(), *([named] if difference.sizes else [])] == sentences
    assert difference.sizes or sentences == [f"They differ in {named}."]
    assert len(compare(b, a).changes) == 1


def random_layer(seed: int, changed: float | None = None) -> Graph:
    """Returns many ops that share values, half of them commutative; ``changed`` replaces one constant."""
    chance = random.Random(seed)
    s = Sketch()
    values = [s.input(chance.choice([TYPE, TensorType("float64", (2, 3), "cpu")])) for _ in range(3)]
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


def test_the_nearest_is_the_one_that_differs_least():
    far = [parts(random_layer(seed)) for seed in range(50)]
    near = [
        parts(make_template("sin", constant=3.0)),
        parts(make_template("tanh", constant=3.0)),
        parts(make_template("tanh", both=True, dims=(1,))),
    ]
    assert explain_miss(BASE, [*far, *near])[0] == 51
    assert explain_miss(BASE, [*near, *far, parts(make_template("tanh"), driver="1")])[0] == 53
    assert explain_miss(BASE, [])[0] is None
    changed = parts(random_layer(7, 7.25))
    assert explain_miss(changed, [*near, *far])[0] == 3 + 7
    # A key that differs in sizes alone is nearest, also behind many that differ in fewer ingredients.
    key = {"inputs": "%0: float32[12] cpu", "ops": "%1: float32[12] cpu = sin(%0)", "attributes": "12"}
    relative = {name: text.replace("12", "8") for name, text in key.items()}
    others = [{**key, "ops": "\n".join([key["ops"]] * number)} for number in range(2, 40)]
    assert explain_miss(key, [relative, *others])[0] == 0


SILU = "torch.nn.functional.silu"
ONE, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
HIDDEN, OTHER_HIDDEN = (f"hidden str {letter * 32}" for letter in "ab")
TRACE = """
  # /home/me/model.py:31: \t        return F.silu(x) * self.scale
  t281 = torch.nn.functional.linear(t113, t_layers_0_a_weight, None)  # t281: "cpu f32[4, 32]"
    # /home/me/model.py:40: \t        return unsilu(x)
"""


def _list_reads() -> list[list[str | None]]:
    """Returns kind, name, text before and after, and the sentence of each case."""
    cases = Path(__file__).with_name("reads.txt").read_text().strip().split("\n\n")
    lines = [[line.partition(" ")[2] for line in case.splitlines()] for case in cases]
    return [[None if text == "(absent)" else text for text in case] for case in lines]


@pytest.mark.parametrize(("kind", "name", "before", "after", "sentence"), _list_reads())
def test_a_read_that_differs(kind, name, before, after, sentence):
    assert compare_read(kind, name, before, after).sentence == sentence


def test_hidden_values_are_in_nothing_that_is_printed():
    difference = compare_read("global", "mine.API_KEY", HIDDEN, OTHER_HIDDEN)
    assert difference.compare("A", "B") == "They differ in `mine.API_KEY`: values hidden."
    assert difference.values == ("(hidden)", "(hidden)")
    assert difference.to_dict()["before"] == difference.to_dict()["after"] == "(hidden)"
    assert not compare_read("global", "mine.A", None, HIDDEN).is_hidden


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("m.A 1\nm.A:x 3", "m.A 2\nm.A:x 4", ["`m.A.x` is 4, and was 3 when this program was made"]),
        ("m.A 1\nm.A:x 3", "m.A 2\nm.A:x 3", ["the class `m.A` is 2, and was 1 when this program was made"]),
        ("m.A 1\nm.A:x 3", "m.A 2", ["`m.A.x` is absent, and was 3 when this program was made"]),
    ],
)
def test_of_a_class_the_attribute_is_named(before, after, said):
    assert [each.sentence for each in compare_program_keys({"classes": before}, {"classes": after})] == said


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (SILU, "/home/me/model.py:31: return F.silu(x) * self.scale"),
        ("layers.0.scale", "/home/me/model.py:31: return F.silu(x) * self.scale"),
        ("mine:unsilu", "/home/me/model.py:40: return unsilu(x)"),
        *(("t281", None), ("lu", None), ("", None)),
    ],
)
def test_the_line_of_source_that_says_a_name(name, line):
    assert find_source_line(TRACE, name) == line


def test_the_nearest_key_differs_in_the_fewest_lines():
    key, far, near = ({"model": f"a {a}\nb {a}\nc {c}", "state": "d 4"} for a, c in ((1, 3), (9, 9), (1, 9)))
    assert find_nearest(key, [far, near]) == find_nearest(key, [near, near, far]) == 1
    assert find_nearest(key, [far, near, {"model": "x", "state": "y"}, key]) == 3
    assert find_nearest(key, []) is None
