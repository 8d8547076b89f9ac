"""The life of a program: derived and stored by one transform, loaded by another one over the same store.

Its templates are called as before, or not at all.
"""

import copy
import gc
import os
import sys
import threading
import weakref
from dataclasses import replace
from types import FunctionType, SimpleNamespace
from unittest import mock

import fake_cuda
import pytest
import thunder
import thunder.torch as ltorch
import torch
from loaded_programs import build, load, no_interpretation, run, write
from models import Blocks, Residual, are_same, compile_with, recompute, step
from nvfuser_definitions import define_executables, define_regions
from stored_programs import Cell, compile_anew, counts, store_program, without_interpreter
from threads_at_once import run_at_once
from thunder.core import prims

import fusioncache
from fusioncache.accelerators.programs import derivation
from fusioncache.accelerators.programs.program_list import ProgramList
from fusioncache.accelerators.programs.programs import ProgramKeeper
from fusioncache.accelerators.programs.template_loader import TemplateLoader, refer_to
from fusioncache.accelerators.programs.text import TemplateReference
from fusioncache.backends.eager import Eager
from fusioncache.observe.record.ledger import Ledger
from fusioncache.template.plan import Plan
from fusioncache.transform.shared_region import RegionBackends
from fusioncache.transform.templates import TemplateCalls


@pytest.fixture
def loaded(tmp_path):
    model, x = store_program(tmp_path)
    return *compile_anew(model, tmp_path), model, x


def test_a_program_is_loaded_and_nothing_is_interpreted_also_by_threads_at_their_first_call(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model, x = Blocks(1), torch.randn(5, 16)
    compiled, transform = compile_anew(model, tmp_path)
    results = step(compiled, model, x)
    assert counts(transform) == (0, 1, {})
    compiled, transform = compile_anew(model, tmp_path)
    with without_interpreter():
        for _ in range(3):
            assert are_same(step(compiled, model, x), results)
    assert counts(transform) == (1, 0, {})
    assert (thunder.cache_hits(compiled), thunder.cache_misses(compiled)) == (3, 0)
    compiled, transform = compile_anew(model, tmp_path)
    build, together, outputs = ProgramKeeper.build, threading.Barrier(4, timeout=240), []

    def build_together(*args):
        together.wait()  # none finds what another one has loaded
        return build(*args)

    monkeypatch.setattr(ProgramKeeper, "build", build_together)
    run_at_once(*[lambda: outputs.append(compiled(x).detach())] * 4)
    assert are_same(outputs, [results[0]] * 4)
    assert counts(transform) == (4, 0, {})


def test_a_model_that_is_changed_after_loading_is_guarded_as_by_thunder(loaded):
    compiled, transform, model, x = loaded
    compiled(x)
    model.scale = 3.0
    assert torch.equal(compiled(x), model(x))
    assert counts(transform) == (1, 1, {})


def test_a_failed_guard_of_a_loaded_program_is_a_reason(loaded):
    compiled, transform, model, x = loaded
    build, fail = ProgramKeeper.build, mock.Mock(side_effect=ValueError("another guard"))
    with mock.patch.object(ProgramKeeper, "build", lambda *args: build(*args)._replace(prologue_fn=fail)):
        assert torch.equal(compiled(x), model(x))
    # It is derived, and stored beside the one that did not fit.
    assert counts(transform) == (0, 1, {"its guards fail for these inputs": 1})
    assert len(thunder.compile_stats(compiled).interpreter_cache) == 1


def test_the_environment_turns_programs_off_but_not_those_of_an_argument(tmp_path, monkeypatch):
    model, x = store_program(tmp_path)
    monkeypatch.setenv("FUSIONCACHE_PROGRAMS", "0")
    for programs, loaded in ((None, 0), (True, 1)):
        compiled, transform = compile_anew(model, tmp_path, programs=programs)
        compiled(x)
        assert counts(transform) == (loaded, 0, {})


@pytest.mark.parametrize("transforms", [1, 2])
@pytest.mark.parametrize("option", ["constant values", "no caching", "symbolic values"])
def test_only_one_transform_with_thunders_own_cache_keeps_programs(tmp_path, transforms, option):
    caches = [fusioncache.Cache(record=False, store=tmp_path) for _ in range(transforms)]
    ours = [fusioncache.FusionCache(cache=cache, backend="eager", jobs=0) for cache in caches]
    thunder.jit(torch.tanh, executors=fusioncache.executors(), transforms=ours, cache=option)(torch.randn(3, 4))
    kept = int((transforms, option) == (1, "constant values"))
    assert [counts(transform) for transform in ours] == [(0, kept, {})] * transforms


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("programs.ProgramKeeper.describe", (0, 0, {"failed: KeyError": 2})),
        ("programs.build_program", (0, 2, {"failed: KeyError": 1})),
    ],
)
def test_what_can_be_neither_described_nor_built_is_derived_as_ever(loaded, monkeypatch, what, expected):
    compiled, transform, model, x = loaded
    monkeypatch.setattr(f"fusioncache.accelerators.programs.{what}", mock.Mock(side_effect=KeyError("no such thing")))
    with pytest.warns(RuntimeWarning, match="neither loaded nor stored: KeyError$"):
        assert torch.equal(compiled(x), model(x))
    compiled(x[:2])
    assert counts(transform) == expected


def test_what_fails_while_thunder_traces_is_not_kept(loaded):
    compiled, transform, *_ = loaded
    for _ in range(2):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(3, 5))
    assert counts(transform) == (0, 0, {})


def test_a_program_is_not_kept_if_its_key_changes_meanwhile(tmp_path, monkeypatch):
    model, x = Cell(), torch.randn(3, 4)
    compiled, transform = compile_anew(model, tmp_path)

    def change(*traces, **_options):
        model.scale = 5.0
        return traces

    monkeypatch.setattr(transform, "transform_traces_pre_prologue", change)
    with pytest.raises(RuntimeError, match=r"Expected 5.0 to be equal"):  # Thunder's guard notices it as well
        compiled(x)
    assert counts(transform) == (0, 0, {"`model.scale` changed while the program was traced": 1})


def list_replaced():
    thunders = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "thunder"]
    return [
        (module.__name__, name)
        for module in thunders
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__code__.co_filename.startswith(os.path.dirname(fusioncache.__file__))
    ]


def test_uninstall_gives_thunder_its_own_back(loaded, tmp_path):
    compiled, transform, model, x = loaded
    fusioncache.tracing.uninstall()
    try:
        assert list_replaced() == []
        assert type(thunder.common.CompileStats().interpreter_cache) is list
        for inputs in (x, x[:2]):
            assert torch.equal(compiled(inputs), model(inputs))
        assert counts(transform) == (0, 0, {})
    finally:
        fusioncache.tracing.install()
    compiled, _ = compile_anew(model, tmp_path)
    assert type(thunder.compile_stats(compiled).interpreter_cache) is ProgramList


def test_a_loaded_and_a_derived_program_forget_the_arguments_of_their_first_call(loaded):
    compiled, transform, _, x = loaded
    watched = []
    for rows in (3, 2):
        watched.append(weakref.ref(inputs := x[:rows].clone()))
        compiled(inputs)
        del inputs
    assert counts(transform) == (1, 1, {})
    gc.collect()
    assert [each() for each in watched] == [None, None]


def test_texts_are_compared_in_every_call_of_a_derived_a_loaded_and_a_filled_in_program(tmp_path):
    def compute(x, how):
        return x * 2 if how == "double" else x - 1

    for loaded in (0, 4):
        compiled, transform = compile_anew(compute, tmp_path)
        for length in (3, 5, 7):
            for how in ("double", "less") * 4:
                assert torch.equal(compiled(torch.ones(length), how), compute(torch.ones(length), how))
        stats = transform.stats()
        assert (stats.programs_loaded, stats.programs_filled) == (loaded, 2)


def test_regions_that_cannot_be_read_are_not_counted_and_the_program_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(derivation, "collect_regions", lambda *_: b"x")
    model, x = store_program(tmp_path)
    compiled, transform = compile_anew(model, tmp_path)
    assert torch.equal(compiled(x), model(x))
    assert counts(transform) == (1, 0, {}) and transform.stats().regions == 0


def test_verify_mode_raises_where_a_stored_program_is_another_one(tmp_path, monkeypatch):
    write = ProgramKeeper.write

    def write_another(*args):
        text = write(*args)
        source = text.computation.source.replace("torch.nn.functional.linear(", "torch.add(")
        return replace(text, computation=replace(text.computation, source=source))

    monkeypatch.setattr(ProgramKeeper, "write", write_another)
    model, x = store_program(tmp_path)
    compiled, transform = compile_anew(model, tmp_path, verify=True)
    with pytest.raises(fusioncache.VerificationError, match="its forward trace differs") as raised:
        compiled(x)
    assert "-  t" in str(raised.value) and "torch.add(" in str(raised.value)
    assert counts(transform) == (0, 0, {})


@pytest.fixture(scope="module")
def derived():
    """Returns a model and its program."""
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
        fields = {"uses": tuple(replace(use, **fields) for use in uses)}

    def change(text):
        templates = {name: each for name, each in text.context.items() if isinstance(each, TemplateReference)}
        changed = {name: replace(each, **fields) for name, each in templates.items()}
        return replace(text, context={**text.context, **changed})

    changed = replace(program, computation=change(program.computation), backward=change(program.backward))
    own = Eager.environment
    monkeypatch.setattr(Eager, "environment", lambda self: {**own(self), **environment})
    with pytest.raises(ValueError, match=reason):
        build(compile_with(model)[0], changed)


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


class Taken(Exception): ...


def rewrite(traces):
    """Returns our transform after it has transformed traces of a GPU."""
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
        backends = RegionBackends("auto", cache, Ledger(cache.ledger))
        load = TemplateLoader(cache, backends, TemplateCalls(lambda template: None), data)
        calls = [load.load(refer_to(call)) for call in transform.calls()]
        for allowed in (each for call in calls for each in call.allowed()):
            with mock.patch.object(type(executor), "fuse", take), pytest.raises(Taken):
                allowed.fallback.call(*[None] * len(allowed.instance.region.inputs))
    assert made
    assert define_regions([SimpleNamespace(bound_symbols=made)]) == define_regions(traces)


def multiply_groups(x, up, counts):
    return ltorch.tanh(ltorch._grouped_mm(x * 2, up, ltorch.to(ltorch.sum(counts, 1), torch.int32)))


def write_in_place(x, y):
    return ltorch.tanh(prims.copy_(x + y, x, grad_enabled=False))


@pytest.mark.parametrize(
    ("function", "shapes", "options", "line"),
    [
        (write_in_place, [(10, 10)] * 2, {}, "add_output(tv3, tv0)"),
        (multiply_groups, [(32, 16), (4, 16, 8), (4, 2)], {"grad": True, "dtype": "bfloat16"}, "fd.ops.grouped_mm("),
    ],
)
def test_writes_and_groups_are_in_the_definitions_that_nvfuser_gets(function, shapes, options, line):
    fake_cuda.find_nvfuser_executor()
    traces = fake_cuda.make_traces(function, shapes, **{"grad": False, **options})
    with fake_cuda.pretend_gpu():
        transform = rewrite(traces)
    definitions = define_executables(transform)
    assert definitions == define_regions(traces)
    assert sum(line in definition for definition in definitions) == 1


def gated(x, gate, weight):
    """Regions around a product, with rounding, a reduction, and tensors that are made on the GPU."""
    y = ltorch.silu(x * gate) @ weight
    return ltorch.softmax(y.float() * 0.5, -1).to(y.dtype) + ltorch.ones(4, device=x.device, dtype=x.dtype)
