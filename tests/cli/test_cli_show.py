"""The command show, to the letter."""

import json

import pytest
from commands import get_output, save_run, save_two_runs
from recorded_templates import make_ledger, make_scaled_template, save_ledger

from fusioncache.ir import Graph, NumberType, Op, Ref, Template, TensorType
from fusioncache.template.key import make_key


@pytest.fixture(autouse=True)
def _run(monkeypatch):
    save_run(monkeypatch)


def test_the_regions_are_those_of_the_newest_run_that_has_some(monkeypatch):
    save_two_runs(monkeypatch)
    assert "nvFusion0" in get_output("show", "convert", "--regions")


def test_sizes_and_numbers_are_parameters(monkeypatch):
    vector = TensorType("float32", (Ref(2),), "cpu")
    graph = Graph((NumberType("float"), vector), (Op("prims.mul", (Ref(0), Ref(1)), (vector,)),), (3,), 1)
    save_ledger(monkeypatch, make_ledger(Template(graph, make_key(graph, {}), "scaled")))
    assert get_output("show", "scaled", "--parameters") == "parameters\n  size %2\n  number %0\n"


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
