"""Templates as text, and keys: one equal and one not-equal test for everything in a key, and the key as a whole."""

import pytest
from drawn_regions import ENVIRONMENT, draw, draw_residual, make_template

from fusioncache.ir import Instance, Key, TensorType
from fusioncache.ir.keys import INGREDIENTS, Level
from fusioncache.ir.template import encode_region
from fusioncache.template import text as text_module
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import artifact_key, executable_key, make_key, program_key_of, template_key, template_name
from fusioncache.template.text import write_graph


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


@pytest.mark.parametrize("make", [template_key, executable_key])
def test_templates_and_executables_are_named_by_the_graph_and_the_environment(make):
    assert make(make_template(), ENVIRONMENT) == make_key(make_template(), ENVIRONMENT)
    with pytest.raises(ValueError, match="the ingredient 'device' cannot be in this key: its level is ARTIFACT"):
        make(make_template(), {**ENVIRONMENT, "device": "H200"})


def test_artifacts_are_named_by_the_layouts_and_where_it_shows_by_the_order_too():
    graph = draw("add(x, y)")
    instance = Instance(graph, (0, 1), (0,))
    alike, unlike = (((2, 3), (3, 1)), ((2, 3), (3, 1))), (((2, 3), (3, 1)), ((2, 3), (1, 2)))
    environment = {**ENVIRONMENT, "device": "H200"}
    key = artifact_key(graph, environment, alike, instance)
    assert key == make_key(graph, {**environment, "layout": "(2, 3) (3, 1)\n(2, 3) (3, 1)"})
    ordered = artifact_key(graph, environment, unlike, instance)
    assert ordered.texts["order"].encode() == encode_region(instance)
    assert ordered.texts.keys() - key.texts.keys() == {"order"}


def test_only_registered_ingredients_make_a_key():
    with pytest.raises(ValueError, match="no ingredient is registered as 'vresions': add it to"):
        make_key(make_template(), {"vresions": "1"})
    with pytest.raises(ValueError, match="'ops' cannot be in this key"):
        make_key(make_template(), {"ops": ""})


def test_the_registry_is_in_the_order_of_a_key_and_says_what_each_ingredient_means():
    everything = {name: "" for name, kind in INGREDIENTS.items() if kind.level not in (Level.GRAPH, Level.PROGRAM)}
    of_programs = {name: "" for name, kind in INGREDIENTS.items() if kind.level is Level.PROGRAM}
    texts = [*make_key(make_template(), everything).texts, *program_key_of(of_programs).texts]
    assert texts == list(INGREDIENTS)
    for kind in INGREDIENTS.values():
        assert kind.meaning[0].isupper() and kind.meaning.endswith(".") and "\n" not in kind.meaning
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
    digests = [
        make_key(canonicalize(draw("sin(x)")).graph, {}).digest,
        make_key(make_template(both=True), ENVIRONMENT).digest,
        make_key(canonicalize(draw_residual(5)).graph, {}).digest,
        make_key(canonicalize(NORM).graph, {}).digest,
    ]
    assert digests == [
        "94bd3b773d09e03e804d68b626727a857b0a5699e493113cdcb23e2d013e2541",
        "f386831dafa965b8d2c2e61134024771b7eee4cc5d213eb331de14b4af8783ab",
        "24242dd0dfb95745c0251f715e1458e9d7ae81ac8149f95b859d87c1b5d2a5b1",
        "0514052e2e098b303950372ff4b73503bec927eeaca972436b1f8f5bd797c579",
    ]


def test_constants_and_attributes_stand_in_ingredients_of_their_own():
    parts = make_key(canonicalize(NORM).graph, {}).texts
    assert parts["constants"] == "float 0x1.5555555555555p-2\nfloat 0x1.4f8b588e368f1p-17"
    assert parts["attributes"].splitlines()[:3] == ["dtype 'float32'", "int '2'", "int '3'"]
    assert "constant0" in parts["ops"] and "0.333" not in parts["ops"]


@pytest.mark.parametrize(("region", "name"), [(NORM, "residual_sum_rsqrt"), (draw_residual(1), "residual_tanh")])
def test_names_say_what_a_template_does_and_which_one_it_is(region, name):
    graph = canonicalize(region).graph
    key = make_key(graph, {})
    assert template_name(graph, key) == f"{name}_{key.digest[:8]}"
