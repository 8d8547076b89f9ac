"""The command show, to the letter."""

import json

import pytest
from commands import CHAIN, call, get_output, save_other, save_run, save_two_runs
from recorded_templates import make_cast_template, make_ledger, make_scaled_template, save_ledger

from fusioncache.ir import Graph, NumberType, Op, Ref, Template, TensorType
from fusioncache.observe.record.database import RecordReader
from fusioncache.template.key import make_key


@pytest.fixture(autouse=True)
def _run(monkeypatch):
    save_run(monkeypatch)


def test_show_says_that_a_part_is_empty():
    assert "constants  e3b0c44298fc\n  (none)\n" in get_output("show", "convert")
    assert get_output("show", "convert", "--parameters") == "parameters\n  (none)\n"


def test_show_as_json():
    data = json.loads(get_output("show", CHAIN.key.digest[:12], "--json"))
    (listed,) = (one for one in json.loads(get_output("ls", "--json"))["templates"] if one["name"] == CHAIN.name)
    own = {name: data.pop(name) for name in ("ingredients", "parameters", "seen_in")}
    assert data == {"schema": 2, **listed, "not_kept": {}}
    parts = [{"name": part.name, "digest": part.digest, "text": part.text} for part in CHAIN.key.ingredients]
    assert own["ingredients"] == parts
    terms = [{"value": "%1", "seen": [1, 2, 3, 7]}]
    assert own["parameters"] == {"residual_terms": terms, "sizes": [], "numbers": [], "varying": []}
    assert [region["name"] for region in own["seen_in"]] == ["nvFusion1", "nvFusion2", "nvFusion3", "nvFusion7"]


def test_a_region_as_json():
    (region,) = json.loads(get_output("show", "convert", "--regions", "--json"))["seen_in"]
    assert region == {
        **{"model": "Blocks", "trace": "forward", "trace_number": 0, "position": 0, "name": "nvFusion0"},
        **{"outcome": "miss", "reason": None, "arities": [], "plan": "inline", "module": "blocks.0", "layer": 0},
        "lines": [
            {"file": "/home/me/model.py", "line": 31, "library": False},
            {"file": "/lib/torch/nn.py", "line": 7, "library": True},
        ],
    }


def test_parts_as_json():
    data = json.loads(get_output("show", "residual", "--inputs", "--ops", "--json"))
    assert [part["name"] for part in data["ingredients"]] == ["inputs", "ops", "constants", "attributes", "outputs"]
    assert "parameters" not in data


def test_the_regions_are_those_of_the_newest_run_that_has_some(monkeypatch):
    save_two_runs(monkeypatch)
    assert "nvFusion0" in get_output("show", "convert", "--regions")


def test_a_template_without_recorded_regions(monkeypatch):
    save_other(monkeypatch, make_ledger(make_cast_template("alone", "other")))
    assert get_output("show", "alone", "--regions") == "regions\n  (none)\n"


@pytest.mark.parametrize("id_", [CHAIN.name, CHAIN.name[:10], CHAIN.key.digest, CHAIN.key.digest[:12]])
def test_an_id_is_the_start_of_a_name_or_digest(id_):
    assert get_output("show", id_).startswith(f"name                    {CHAIN.name}\n")
    assert len(RecordReader().find_templates(id_)) == 1


def test_sizes_and_numbers_are_parameters(monkeypatch):
    vector = TensorType("float32", (Ref(2),), "cpu")
    graph = Graph((NumberType("float"), vector), (Op("prims.mul", (Ref(0), Ref(1)), (vector,)),), (3,), 1)
    save_ledger(monkeypatch, make_ledger(Template(graph, make_key(graph, {}), "scaled")))
    assert get_output("show", "scaled", "--parameters") == "parameters\n  size %2\n  number %0\n"


def test_wrong_usage():
    result = call("show")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Missing argument 'ID'" in result.stderr


def test_the_sizes_with_which_others_are_the_same(monkeypatch):
    own, less = make_scaled_template(2, 64), make_scaled_template(2, 64, factor=0.25)
    others = (*(make_scaled_template(2, length) for length in (96, 200)), less, make_scaled_template(1, 64))
    save_ledger(monkeypatch, make_ledger(own, *others))
    assert get_output("show", own.name, "--parameters").split("\n")[1:3] == [
        "  other templates are the same but for dimension 1 of %0: 64, 96, 200",
        "  other templates are the same but for a number: 0.25, 0.5",
    ]
    data = json.loads(get_output("show", own.name, "--parameters", "--json"))["parameters"]["varying"]
    assert data == [{"place": "dimension 1 of %0", "seen": [64, 96, 200]}, {"place": "", "seen": [0.25, 0.5]}]
    assert "(none)" in get_output("show", others[-1].name, "--parameters")
