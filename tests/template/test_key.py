"""One equal and one not-equal test for everything in a key, and the key as a whole."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from drawn_regions import ENVIRONMENT, Sketch, draw_residual, make_template
from repository import HELPERS

from fusioncache.ir import Key, TensorType
from fusioncache.template import key as key_module
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import framed, inputs_text, make_key, ops_text, outputs_text
from fusioncache.template.text import Inline


def differing(one: Key, other: Key) -> list[str]:
    pairs = zip(one.ingredients, other.ingredients, strict=True)
    return [a.name for a, b in pairs if (a.text, a.digest) != (b.text, b.digest)]


def test_ingredients_in_order():
    names = [part.name for part in make_key(make_template(), ENVIRONMENT).ingredients]
    core = ["format", "inputs", "ops", "constants", "attributes", "outputs"]
    assert names == [*core, "architecture", "backend", "options", "versions"]


@pytest.mark.parametrize(
    ("ingredient", "other"),
    [
        ("ops", make_template("tanh")),
        ("constants", make_template(constant=3.0)),
        ("attributes", make_template(dims=(1,))),
    ],
)
def test_one_ingredient_differs(ingredient, other):
    assert make_key(make_template(), ENVIRONMENT) == make_key(make_template(), dict(ENVIRONMENT))
    assert make_key(make_template(), ENVIRONMENT) != make_key(other, ENVIRONMENT)
    assert differing(make_key(make_template(), ENVIRONMENT), make_key(other, ENVIRONMENT)) == [ingredient]


@pytest.mark.parametrize("ingredient", ["backend", "versions", "options", "architecture"])
def test_the_environment_differs(ingredient):
    changed = {**ENVIRONMENT, ingredient: ENVIRONMENT[ingredient] + "x"}
    assert make_key(make_template(), ENVIRONMENT) != make_key(make_template(), changed)
    assert differing(make_key(make_template(), ENVIRONMENT), make_key(make_template(), changed)) == [ingredient]


def test_the_format_differs(monkeypatch):
    before = make_key(make_template(), {})
    assert make_key(make_template(), {}) == before
    monkeypatch.setattr(key_module, "FORMAT", "0")
    assert differing(before, make_key(make_template(), {})) == ["format"]


def test_inputs_ingredient():
    other = make_template(type_=TensorType("float64", (2, 3), "cpu"))
    assert inputs_text(make_template()) == inputs_text(make_template("tanh")) == "input %0: float32[2, 3] cpu"
    assert inputs_text(make_template()) != inputs_text(other)


def test_ops_ingredient():
    assert ops_text(make_template(), Inline()) == ops_text(make_template(), Inline())
    assert ops_text(make_template(), Inline()) != ops_text(make_template("tanh"), Inline())


def test_outputs_ingredient():
    assert outputs_text(make_template()) == outputs_text(make_template("tanh"))
    assert outputs_text(make_template()) != outputs_text(make_template(both=True))


def test_text_decides_and_not_the_digest():
    key = make_key(make_template(), ENVIRONMENT)
    forged = Key(key.digest, key.text + " ", key.ingredients)
    assert forged != key and hash(forged) == hash(key)
    assert Key("other digest", key.text, key.ingredients) == key


def test_frames_cannot_be_mistaken():
    assert framed("a", "x") + framed("b", "y") != framed("a", "x\nb 1\ny\n")
    assert framed("a", "") == "a 0\n\n"


_PROGRAM = """
from drawn_regions import ENVIRONMENT, make_template, draw_residual
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
print(make_key(make_template(both=True), ENVIRONMENT).digest, make_key(canonicalize(draw_residual(5)).graph, {}).digest)
"""


def test_keys_are_the_same_in_every_process_and_for_every_hash_seed():
    def digests(seed: str) -> str:
        path = os.pathsep.join([str(HELPERS), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", _PROGRAM]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    here = make_key(make_template(both=True), ENVIRONMENT), make_key(canonicalize(draw_residual(5)).graph, {})
    assert digests("0") == digests("1") == digests("4242") == f"{here[0].digest} {here[1].digest}\n"


def test_the_digest_is_this_one():
    """A changed digest means a changed format: raise FORMAT with it."""
    s = Sketch()
    x = s.input()
    graph = canonicalize(s.graph(s.op("sin", x))).graph
    assert make_key(graph, {}).digest == "94bd3b773d09e03e804d68b626727a857b0a5699e493113cdcb23e2d013e2541"
