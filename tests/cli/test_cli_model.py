"""A real model's record: every template can be read back, and run alone by its script."""

import json

import thunder
import torch
from commands import get_output
from models import Blocks, are_same, compile_with, step

import fusioncache
from fusioncache.backends.eager import Eager
from fusioncache.cli.listings import read_template_graph
from fusioncache.observe.record.database import RecordReader
from fusioncache.template.plan import inline


def test_every_script_computes_what_its_template_computes():
    model, cache = Blocks(2, 8), fusioncache.Cache(store=False)
    compiled, _ = compile_with(model, cache=cache, recompute="residual")
    step(compiled, model, torch.randn(4, 8))
    cache.write_record()
    templates = [template["digest"] for template in json.loads(get_output("ls", "--json"))["templates"]]
    assert len(templates) > 3
    for digest in templates:
        names: dict = {"__name__": "repro"}
        exec(get_output("show", digest, "--repro"), names)
        values = names["arguments"]()
        found = thunder.jit(names["template"], executors=names["executors"]("eager"))(*values)
        (template,) = RecordReader().find_templates(digest)
        graph = inline(read_template_graph(template), max(template.arities, key=sum))
        assert are_same(list(found), list(Eager().compile(graph, values)(values)))
