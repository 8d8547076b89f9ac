"""Later calls of a model take a shorter path than Thunder's, which only a count of functions shows."""

import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import thunder
import torch
from behind_dynamo import compile_behind_dynamo
from compared_models import are_equal, train
from models import compile_with
from stored_programs import compile_anew
from torch.overrides import BaseTorchFunctionMode

import fusioncache
from fusioncache.accelerators.steps.calls import Channel, connect
from fusioncache.thunder_adapter.installation import is_known_whole

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Model(torch.nn.Module):
    """Returns what the test says of these: results, an argument, views, and what is no tensor."""

    def __init__(self, choose=lambda x, y: y):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.choose = choose
        self.scale = 2.0

    def forward(self, x, *others, bias=None):
        y = self.second(torch.tanh(self.first(x))) * self.scale
        for other in others:
            y = y + other
        return self.choose(x, y if bias is None else y + bias)


ONE = {"thunderfx_disable_split_autograd": True}
"""Thunder's option behind Dynamo: a program has one autograd node."""
NODES = pytest.mark.parametrize("jit", [{}, ONE], ids=["two nodes", "one node"])


def both(jit, **options):
    """Returns the same model twice, called in our way and in Thunder's."""
    found = []
    for lean in ("auto", "thunder"):
        transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager", programs=False, lean=lean)
        model = Model(**options)
        found.append(thunder.jit(model, executors=fusioncache.executors(), transforms=[transform], **jit))
    return found


@pytest.fixture(scope="module", params=[{}, ONE], ids=["two nodes", "one node"])
def pair(request):
    """Returns the same model in both ways, after a few steps. Tests do not change it."""
    compiled = both(request.param)
    for each in 4 * compiled:
        each(X).sum().backward()
    return compiled


def is_short(compiled):
    return vars(compiled)["_forward_fn"].__code__.co_qualname == "make_forward.<locals>.forward"


def count(compiled):
    stats = thunder.compile_stats(compiled)
    return stats.calls, stats.cache_hits, stats.cache_misses


def look(compiled, *args, **kwargs):
    before = count(compiled)
    found = train(compiled, *args, **kwargs)
    return [*found, *(new - old for new, old in zip(count(compiled), before, strict=True))]


def list_gradients(compiled):
    return [each.grad for each in compiled._model.parameters()]


CHOICES = {
    "several": lambda x, y: (y, y.sum(), 3, None),
    "named": lambda x, y: {"y": y, "x": x * 2},
    "an argument": lambda x, y: (x, y),
    "an argument alone": lambda x, y: x,
    "a view of an argument": lambda x, y: (x.view(12), y),
    "a view": lambda x, y: y.t(),
    "one twice": lambda x, y: (y, y),
    "no gradient": lambda x, y: (y, (y > 0)),
}


@NODES
@pytest.mark.parametrize("choice", CHOICES)
def test_whatever_is_returned_is_thunders(choice, jit):
    pair = both(jit, choose=CHOICES[choice])
    for _ in range(3):
        x = X.clone().requires_grad_("argument" in choice)
        assert are_equal(*(look(compiled, x) for compiled in pair))
    assert [is_short(compiled) for compiled in pair] == [True, False]


def test_outputs_that_dynamo_calls_constant_have_no_gradient():
    jit = {**ONE, "is_differentiable_outputs": [True, False, True]}
    pair = both(jit, choose=lambda x, y: (y * 2, y * 3, y))
    for compiled in 2 * pair:
        outputs = compiled(X)
        assert [each.requires_grad for each in outputs] == [True, False, True]
        (outputs[0] + outputs[2]).sum().backward()
    assert are_equal(*map(list_gradients, pair))
    assert is_short(pair[0])


USUAL = (nullcontext, [X], {})
CALLS = {
    "a mode of torch functions": (BaseTorchFunctionMode, [X], {}),
    "another default device": (lambda: torch.device("cpu"), [X], {}),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), [X], {}),
    "no gradients": (torch.no_grad, [X], {}),
    "inference": (torch.inference_mode, [X], {}),
    "by name": (nullcontext, [X], {"bias": torch.ones(4)}),
    "one twice": (nullcontext, [X, X], {}),
    "views of one memory": (nullcontext, [X, X[:1]], {}),
    "numbers": (nullcontext, [X, 2, 1.5], {}),
    "of another size": (nullcontext, [X[:2]], {}),
    "a parameter": (nullcontext, [torch.nn.Parameter(X.clone())], {}),
}
"""Contexts in which a model is called, and its arguments."""


@pytest.mark.parametrize("name", CALLS)
def test_in_whatever_context_and_with_whatever_arguments_it_is_called(pair, name):
    for context, args, kwargs in (USUAL, CALLS[name], CALLS[name], USUAL, CALLS[name]):
        with context():
            assert are_equal(*(look(compiled, *args, **kwargs) for compiled in pair))
        assert torch.is_grad_enabled()


def test_the_statistics_of_a_call_are_thunders(pair):
    compiled = pair[0]
    stats = thunder.compile_stats(compiled)
    compiled(X)
    assert stats.last_trace_host_start < stats.last_prologue_execution_start < stats.last_trace_host_stop
    (entry,) = (each for each in stats.interpreter_cache if each.computation_traces is stats.last_traces)
    assert stats.last_traces is entry.computation_traces and stats.last_prologue_traces is entry.prologue_traces
    assert stats.last_prologue is entry.prologue_fn and stats.last_computation is entry.computation_fn


def change_an_argument(compiled):
    x = X.clone()
    output = compiled(x)
    x.add_(1)
    output.sum().backward()


def write_into_a_parameter(compiled):
    output = compiled(X)
    with torch.no_grad():
        compiled._model.second.weight.add_(0)
    output.sum().backward()


def go_back_three_times(compiled):
    output = compiled(X).sum()
    output.backward(retain_graph=True)
    once = [each.clone() for each in list_gradients(compiled)]
    output.backward(retain_graph=True)
    assert are_equal(list_gradients(compiled), [2 * each for each in once])
    output.backward()
    output.backward()


def differentiate_twice(compiled):
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(x).sin().sum(), x, create_graph=True)
    gradient.sum().backward()


def go_back_in_another_order(compiled):
    outputs = [compiled(X), compiled(X + 1)]
    outputs[1].sum().backward()
    outputs[0].cos().sum().backward()


def go_back_under_autocast(compiled):
    output = compiled(X)
    with torch.autocast("cpu", torch.bfloat16):
        output.backward(torch.ones_like(output))
    assert not torch.is_autocast_enabled("cpu")


STEPS = {
    change_an_argument: "modified by an inplace operation",
    write_into_a_parameter: "modified by an inplace operation",
    go_back_three_times: "backward through the graph a second time",
    differentiate_twice: "",
    go_back_in_another_order: "",
    go_back_under_autocast: "",
}
"""Steps, each with torch's error, which may be empty."""


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_backward_raises_or_gives_what_it_does_with_thunder(pair, step):
    outcomes = []
    for compiled in pair:
        compiled.zero_grad()
        try:
            step(compiled)
            outcomes.append(["", *list_gradients(compiled)])
        except RuntimeError as error:
            outcomes.append([str(error), *list_gradients(compiled)])
    assert are_equal(*outcomes)
    assert STEPS[step] in outcomes[0][0]


def test_gradients_and_saved_tensors_are_freed_while_backward_runs():
    x, weight = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    alive = []

    def backward(saved, gradients):
        tensors, _ = saved
        known = [weakref.ref(tensors[0]), weakref.ref(gradients[0])]
        tensors.clear()
        gradients.clear()
        alive.extend(each() is not None for each in known)
        return torch.ones(2), torch.ones(2)

    output = torch.zeros(2)
    connect(Channel(backward, None, []), [x, weight], (output,), [torch.full((2,), 3.0)])
    (output * 2).sum().backward()
    assert alive == [False, False]
    assert torch.equal(x.grad, torch.ones(2)) and torch.equal(weight.grad, torch.ones(2))


@NODES
def test_gradients_that_go_another_way_are_not_handed_on(jit):
    for compiled in both(jit):
        compiled(X)
        entries = thunder.compile_stats(compiled).interpreter_cache
        entries[0] = entries[0]._replace(return_none_instead_of_grads=True)
        compiled(X).sum().backward()
        assert thunder.cache_hits(compiled) == 1
        assert list_gradients(compiled) == [None] * 4


def test_several_threads_call_at_a_time(pair):
    expected = pair[1](X)
    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(lambda _: torch.equal(pair[0](X), expected), range(60)))


@pytest.mark.parametrize("what", ["thunder.jit", "thunder.connect_to_autograd", "thunder.ThunderModule.forward"])
def test_where_thunder_is_another_its_own_way_stays(monkeypatch, what):
    original = eval(what)
    monkeypatch.setattr(what, lambda *args, **kwargs: original(*args, **kwargs))
    is_known_whole.cache_clear()
    try:
        compiled, _ = compile_with(Model(), programs=False)
    finally:
        monkeypatch.undo()
        is_known_whole.cache_clear()
    assert not is_short(compiled)
    assert torch.equal(compiled(X), compiled._model(X))


@pytest.mark.parametrize(
    "options", [{"cache": "no caching"}, {"cache": "same input"}, {"is_differentiable_outputs": [True]}]
)
def test_with_other_options_of_thunders_its_own_way_stays(options, tmp_path):
    assert not is_short(compile_anew(Model(), tmp_path, jit=options, programs=False)[0])


def test_graphs_of_dynamo_are_called_in_our_way():
    model = Model()
    compiled, _ = compile_behind_dynamo(model)
    for _ in range(3):
        found = [torch.autograd.grad(each(X).square().sum(), list(model.parameters())) for each in (compiled, model)]
        torch.testing.assert_close(*found)
    ((graph,),) = (info.thunder_compiled_fns for info in compiled._backend.subgraph_infos)
    assert is_short(graph)
