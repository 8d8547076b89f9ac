"""A compiled function inside ``torch.compile`` is not traced, and works as elsewhere, as with Thunder alone."""

import copy
from contextlib import contextmanager
from pathlib import Path

import pytest
import thunder
import torch
from models import curve
from stored_programs import compile_anew, counts
from thunder.dynamo import thunderfx
from torch._dynamo import utils
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import fusioncache

pytestmark = pytest.mark.usefixtures("eager_regions")

LENGTHS = (3, 5, 3)
FOLDERS = tuple(str(Path(package.__file__).parent) for package in (thunder, fusioncache))
GENERATED = ("thunder.", "fusioncache.")
"""Prefixes of the file names of code that Thunder generates and we rewrite; no such file exists."""


@contextmanager
def note_frames():
    """Yields a list that gets, at the end of the body, the file of each frame that Dynamo compiled in it."""
    files: list[str] = []
    utils.set_compilation_metrics_limit(10_000)
    utils.clear_compilation_metrics()
    try:
        yield files
    finally:
        files += [str(each.co_filename) for each in utils.get_compilation_metrics()]
        utils.clear_compilation_metrics()
        utils.set_compilation_metrics_limit(utils.DEFAULT_COMPILATION_METRICS_LIMIT)
        torch._dynamo.reset()


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())


def make_input(length, *, grad=False):
    return torch.linspace(-1, 1, 4 * length).reshape(length, 4).requires_grad_(grad)


def dynamo(call, **options):
    return torch.compile(lambda x: call(x) + 1, **{"backend": "eager", **options})


def go_back(loss):
    loss.backward()
    return loss.detach()


def warm(call):
    for length in LENGTHS:
        call(make_input(length))
    return dynamo(call)


INSIDE = {
    "eager": dynamo,
    "any length": lambda call: dynamo(call, dynamic=True),
    "called before": warm,
    "a checkpoint": lambda call: dynamo(lambda x: checkpoint(call, x, use_reentrant=False)),
    "backward inside": lambda call: dynamo(lambda x: go_back(call(x * 2).sum())),
    "inside thunderfx": lambda call: thunderfx(lambda x: call(x) + 1),
}


def take_steps(call, model):
    found = []
    for length in LENGTHS:
        x = make_input(length, grad=True)
        result = call(x)
        if result.requires_grad:
            result.sum().backward()
        found += [result.detach(), x.grad]
    return [*found, *(each.grad for each in getattr(model, "parameters", list)())]


@pytest.mark.parametrize("way", INSIDE)
def test_dynamo_compiles_what_is_around_and_nothing_of_a_compiled_function(way, tmp_path):
    for model in (make_model(), curve) if way == "eager" else (make_model(),):
        own = copy.deepcopy(model)
        compiled, transform = compile_anew(model, tmp_path)
        with note_frames() as files:
            found = take_steps(INSIDE[way](compiled), model)
        with torch.compiler.set_stance("force_eager"):
            torch.testing.assert_close(found, take_steps(INSIDE[way](own), own))
        assert [each for each in files if each.startswith((*FOLDERS, *GENERATED))] == []
        assert sum(counts(transform)[:2]) > 0 and not counts(transform)[2]
        assert any(each == __file__ for each in files)


OTHERS = {
    "fullgraph": lambda call: dynamo(call, fullgraph=True),
    "export": lambda call: lambda x: torch.export.export(torch.nn.Sequential(call), (x,), strict=True).module()(x),
    "jit.trace": lambda call: lambda x: torch.jit.trace(call, (x,))(x),
    "make_fx of symbols": lambda call: lambda x: make_fx(call, tracing_mode="symbolic")(x)(x + 1),
    "vmap": torch.vmap,
    "func.grad": lambda call: torch.func.grad(lambda x: call(x).sum()),
}


def outcome(make, call, x):
    """Returns the outcome of a call: dtype and numbers of a tensor, or the type of an error."""
    try:
        result = make(call)(x)
        return result.dtype, result.tolist()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("way", OTHERS)
def test_whatever_else_looks_at_a_compiled_function_gets_what_it_gets_of_thunders(way, tmp_path):
    inner, x = torch.compile(curve, backend="eager"), make_input(3)
    models = (make_model(), curve, lambda x: inner(x) + 1)
    for model in models if way in ("fullgraph", "vmap") else models[:1]:
        compiled, _ = compile_anew(model, tmp_path)
        with note_frames():
            plain, found = (outcome(OTHERS[way], call, x) for call in (thunder.jit(model), compiled))
        assert plain == found
