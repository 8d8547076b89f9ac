"""Templates of a stored program: called as they were, or not at all."""

import copy
import dataclasses
from types import SimpleNamespace
from unittest import mock

import fake_cuda
import pytest
import thunder.torch as ltorch
import torch
from loaded_programs import build, load, no_interpretation, run, write
from models import Blocks, Residual, are_same, compile_with, recompute
from nvfuser_definitions import define_executables, define_regions
from thunder.core import prims

import fusioncache
from fusioncache.accelerators.programs.template_loader import TemplateLoader, refer_to
from fusioncache.accelerators.programs.text import TemplateReference
from fusioncache.backends.eager import Eager
from fusioncache.observe.record.ledger import Ledger
from fusioncache.template.plan import Plan
from fusioncache.transform.shared_region import RegionBackends
from fusioncache.transform.templates import TemplateCalls


@pytest.fixture(scope="module")
def derived():
    """A model and its program."""
    model = Blocks(2)
    compiled, transform = compile_with(model, cache=fusioncache.Cache(record=False, store=False))
    run(compiled, model, torch.randn(3, 16))
    return model, write(compiled, transform)


@pytest.mark.parametrize(
    ("fields", "environment", "reason"),
    [
        ({"digest": "0" * 64}, {}, "is another template here"),
        ({}, {"settings": "other"}, "is another template here"),
        ({"backend": "not there"}, {}, "not there"),
        ({"options": (("strange", True),)}, {}, "cannot be had from the backend eager"),
        ({"executor": "gone"}, {}, "no executor gone that fuses"),
    ],
)
def test_another_template_backend_setting_or_executor_does_not_fit(derived, fields, environment, reason, monkeypatch):
    model, program = derived
    if "executor" in fields:
        uses = next(iter(program.templates().values())).uses
        fields = {"uses": tuple(dataclasses.replace(use, **fields) for use in uses)}

    def change(text):
        templates = {name: each for name, each in text.context.items() if isinstance(each, TemplateReference)}
        changed = {name: dataclasses.replace(each, **fields) for name, each in templates.items()}
        return dataclasses.replace(text, context={**text.context, **changed})

    changed = {"computation": change(program.computation), "backward": change(program.backward)}
    own = Eager.environment
    monkeypatch.setattr(Eager, "environment", lambda self: {**own(self), **environment})
    with pytest.raises(ValueError, match=reason):
        build(compile_with(model)[0], dataclasses.replace(program, **changed))


def test_plans_and_arities_are_those_of_the_process_that_derived_the_program():
    torch.manual_seed(0)
    model, inputs = Residual(8), torch.randn(10, 10)
    with recompute():
        compiled, transform = compile_with(model, residual="fold")
        expected = run(compiled, model, inputs)
    program = write(compiled, transform)
    uses = [use for reference in program.templates().values() for use in reference.uses]
    assert {use.plan for use in uses} == set(Plan)
    assert len({use.arities for use in uses}) > 3
    loaded = copy.deepcopy(model)
    compiled = load(loaded, program)
    with no_interpretation():
        assert are_same(run(compiled, loaded, inputs), expected)


GROUPS = [(32, 16), (4, 16, 8), (4, 2)]


class Taken(Exception): ...


def rewrite(traces):
    """Returns our transform, after it got traces of a GPU."""
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(store=False))
    for trace in traces:
        transform.transform_trace_post_optimization(trace)
    assert not transform.stats().bypasses
    return transform


@pytest.mark.parametrize("grad", [False, True])
def test_regions_that_nvfuser_makes_anew_have_the_definitions_of_those_that_thunder_made(grad):
    executor = fake_cuda.find_nvfuser_executor()
    traces = fake_cuda.make_traces(gated, [(4, 4)] * 3, grad=grad, dtype="bfloat16")
    data = SimpleNamespace(executors_list=(executor,), compile_options={})
    fuse, made = type(executor).fuse, []

    def take(*args):
        made.append(fuse(*args))
        raise Taken

    with fake_cuda.pretend_gpu():
        transform = rewrite(traces)
        cache = transform.cache
        backends = RegionBackends("auto", "auto", cache, Ledger(cache.ledger))
        load = TemplateLoader(cache, backends, TemplateCalls(lambda template, collecting: None), data)
        calls = [load.load(refer_to(call)) for call in transform.calls()]
        for allowed in (each for call in calls for each in call.allowed()):
            with mock.patch.object(type(executor), "fuse", take), pytest.raises(Taken):
                allowed.fallback.call(*[None] * len(allowed.instance.region.inputs))
    assert made
    assert define_regions([SimpleNamespace(bound_symbols=made)]) == define_regions(traces)


def write_in_place(x, y):
    return ltorch.tanh(prims.copy_(x + y, x, grad_enabled=False))


def multiply_groups(x, up, counts):
    return ltorch.tanh(ltorch._grouped_mm(x * 2, up, ltorch.to(ltorch.sum(counts, 1), torch.int32)))


@pytest.mark.parametrize(
    ("function", "shapes", "line"),
    [(write_in_place, [(10, 10)] * 2, "add_output(tv3, tv0)"), (multiply_groups, GROUPS, "fd.ops.grouped_mm(")],
)
def test_writes_and_groups_are_in_the_definitions_that_nvfuser_gets(function, shapes, line):
    fake_cuda.find_nvfuser_executor()
    options = {"grad": True, "dtype": "bfloat16"} if shapes is GROUPS else {"grad": False}
    traces = fake_cuda.make_traces(function, shapes, **options)
    with fake_cuda.pretend_gpu():
        transform = rewrite(traces)
    definitions = define_executables(transform)
    assert definitions == define_regions(traces)
    assert sum(line in definition for definition in definitions) == 1


def gated(x, gate, weight):
    """Regions around a product, with rounding, a reduction, and tensors that are made on the GPU."""
    y = ltorch.silu(x * gate) @ weight
    return ltorch.softmax(y.float() * 0.5, -1).to(y.dtype) + ltorch.ones(4, device=x.device, dtype=x.dtype)
