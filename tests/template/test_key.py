"""One equal and one not-equal test for everything in a key, and the key as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from drawn_regions import TYPE, Sketch, residual

from fusioncache.ir import Graph, Key, TensorType
from fusioncache.template import key as key_module
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import framed, inputs_text, make_key, ops_text, outputs_text
from fusioncache.template.text import Inline

ENVIRONMENT = {"backend": "nvfuser", "versions": "nvfuser 1\ntorch 2", "options": "enable ", "architecture": "sm_90"}


def region(name="sin", *, type_=TYPE, constant=2.0, dims=(0,), both=False) -> Graph:
    s = Sketch()
    x = s.input(type_)
    value = s.op("mul", s.op(name, x), constant)
    total = s.op("sum", value, dims)
    return canonicalize(s.graph(total, value) if both else s.graph(total)).graph


def differing(one: Key, other: Key) -> list[str]:
    pairs = zip(one.ingredients, other.ingredients, strict=True)
    return [a.name for a, b in pairs if (a.text, a.digest) != (b.text, b.digest)]


def test_ingredients_in_order():
    names = [part.name for part in make_key(region(), ENVIRONMENT).ingredients]
    core = ["format", "inputs", "ops", "constants", "attributes", "outputs"]
    assert names == [*core, "architecture", "backend", "options", "versions"]


@pytest.mark.parametrize(
    ("ingredient", "other"),
    [
        ("ops", region("tanh")),
        ("constants", region(constant=3.0)),
        ("attributes", region(dims=(1,))),
    ],
)
def test_one_ingredient_differs(ingredient, other):
    assert make_key(region(), ENVIRONMENT) == make_key(region(), dict(ENVIRONMENT))
    assert make_key(region(), ENVIRONMENT) != make_key(other, ENVIRONMENT)
    assert differing(make_key(region(), ENVIRONMENT), make_key(other, ENVIRONMENT)) == [ingredient]


@pytest.mark.parametrize("ingredient", ["backend", "versions", "options", "architecture"])
def test_the_environment_differs(ingredient):
    changed = {**ENVIRONMENT, ingredient: ENVIRONMENT[ingredient] + "x"}
    assert make_key(region(), ENVIRONMENT) != make_key(region(), changed)
    assert differing(make_key(region(), ENVIRONMENT), make_key(region(), changed)) == [ingredient]


def test_the_format_differs(monkeypatch):
    before = make_key(region(), {})
    assert make_key(region(), {}) == before
    monkeypatch.setattr(key_module, "FORMAT", "0")
    assert differing(before, make_key(region(), {})) == ["format"]


def test_inputs_ingredient():
    other = region(type_=TensorType("float64", (2, 3), "cpu"))
    assert inputs_text(region()) == inputs_text(region("tanh")) == "input %0: float32[2, 3] cpu"
    assert inputs_text(region()) != inputs_text(other)


def test_ops_ingredient():
    assert ops_text(region(), Inline()) == ops_text(region(), Inline())
    assert ops_text(region(), Inline()) != ops_text(region("tanh"), Inline())


def test_outputs_ingredient():
    assert outputs_text(region()) == outputs_text(region("tanh"))
    assert outputs_text(region()) != outputs_text(region(both=True))


def test_text_decides_and_not_the_digest():
    key = make_key(region(), ENVIRONMENT)
    forged = Key(key.digest, key.text + " ", key.ingredients)
    assert forged != key and hash(forged) == hash(key)
    assert Key("other digest", key.text, key.ingredients) == key


def test_frames_cannot_be_mistaken():
    assert framed("a", "x") + framed("b", "y") != framed("a", "x\nb 1\ny\n")
    assert framed("a", "") == "a 0\n\n"


_PROGRAM = """
from test_key import ENVIRONMENT, region, residual
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
print(make_key(region(both=True), ENVIRONMENT).digest, make_key(canonicalize(residual(5)).graph, {}).digest)
"""


def test_keys_are_the_same_in_every_process_and_for_every_hash_seed():
    def digests(seed: str) -> str:
        path = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", _PROGRAM]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    here = f"{make_key(region(both=True), ENVIRONMENT).digest} {make_key(canonicalize(residual(5)).graph, {}).digest}\n"
    assert digests("0") == digests("1") == digests("4242") == here


def test_the_digest_is_this_one():
    """A changed digest means a changed format: raise FORMAT with it."""
    s = Sketch()
    x = s.input()
    graph = canonicalize(s.graph(s.op("sin", x))).graph
    assert make_key(graph, {}).digest == "94bd3b773d09e03e804d68b626727a857b0a5699e493113cdcb23e2d013e2541"
