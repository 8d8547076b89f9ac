"""A real model's record: every template can be drawn, read back, and run alone by its script."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
import thunder
import torch
from commands import get_output
from models import Blocks, are_same, compile_with, step

import fusioncache
from fusioncache.backends.eager import Eager
from fusioncache.cli.listings import read_template_graph
from fusioncache.observe.record.database import RecordReader
from fusioncache.template.plan import inline


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where a training step left its record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIONCACHE_DIR", str(tmp_path_factory.mktemp("model")))
        model, cache = Blocks(2, 8), fusioncache.Cache(store=False)
        compiled, _ = compile_with(model, cache=cache, recompute="residual")
        step(compiled, model, torch.randn(4, 8))
        cache.save()
        yield RecordReader().path.parent


@pytest.fixture(autouse=True)
def _record(directory, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_DIR", str(directory))


def _templates() -> list[str]:
    return [template["digest"] for template in json.loads(get_output("ls", "--json"))["templates"]]


def test_every_script_computes_what_its_template_computes():
    templates = _templates()
    assert len(templates) > 3
    for digest in templates:
        names: dict = {"__name__": "repro"}
        exec(get_output("show", digest, "--repro"), names)
        values = names["arguments"]()
        found = thunder.jit(names["template"], executors=names["executors"]("eager"))(*values)
        (template,) = RecordReader().find_templates(digest)
        graph = inline(read_template_graph(template), max(template.arities, key=sum))
        assert are_same(list(found), list(Eager().compile(graph, values)(values)))


def test_every_template_is_drawn():
    for digest in _templates():
        picture = json.loads(get_output("graph", digest, "--json"))
        assert sum(node["kind"] == "op" for node in picture["nodes"]) == picture["ops"]
        ElementTree.fromstring(get_output("graph", digest, "--svg"))


def test_every_region_says_where_it_comes_from():
    seen = [region for digest in _templates() for region in json.loads(get_output("show", digest, "--json"))["seen_in"]]
    assert len(seen) == sum(template["regions"] for template in json.loads(get_output("ls", "--json"))["templates"])
    assert {region["model"] for region in seen} == {"Blocks"}
    assert {region["trace"] for region in seen} == {"forward", "backward"}
    assert any(line["file"] == Blocks.forward.__code__.co_filename for region in seen for line in region["lines"])
