"""A later call of a model goes a shorter way than Thunder's, and nobody can tell but by counting functions."""

import gc
import threading
import weakref

import pytest
import thunder
import torch
from models import are_same, compile_with, step
from stored_programs import Cell, compile_anew
from torch.overrides import TorchFunctionMode

import fusioncache
from fusioncache.accelerators.steps.calls import Channel, connect, find_inner
from fusioncache.thunder_adapter.installation import is_known_whole

X = torch.linspace(-1, 1, 12).reshape(3, 4)
COUNTED = ("calls", "cache_hits", "cache_misses")


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


def both(make=Model, **options):
    """The same model twice, called in our way and in Thunder's."""
    return [compile_with(make(), programs=False, lean=lean, **options)[0] for lean in ("auto", "thunder")]


@pytest.fixture(scope="module")
def pair():
    """The same model in both ways, after a few steps. Tests leave it as it is."""
    return tuple(map(warm, both()))


def is_short(compiled):
    return vars(compiled)["_forward_fn"].__code__.co_qualname == "make_forward.<locals>.forward"


def look(compiled, *args, **kwargs):
    """What a call returns, the gradients of everything, and what Thunder counted."""
    compiled._model.zero_grad()
    before = count(compiled)
    args = [arg.detach().clone().requires_grad_(arg.requires_grad) if torch.is_tensor(arg) else arg for arg in args]
    results = compiled(*args, **kwargs)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(results) if torch.is_tensor(leaf)]
    if any(leaf.requires_grad for leaf in leaves):
        sum(leaf.float().sin().sum() for leaf in leaves if leaf.requires_grad).backward()
    found = [*compiled._model.parameters(), *(arg for arg in args if torch.is_tensor(arg))]
    counts = [new - old for new, old in zip(count(compiled), before, strict=True)]
    others = [leaf for leaf in torch.utils._pytree.tree_leaves(results) if not torch.is_tensor(leaf)]
    return [leaf.detach() for leaf in leaves], [each.grad for each in found], counts, others


def count(compiled):
    return [getattr(thunder.compile_stats(compiled), name) for name in COUNTED]


def agree(ours, thunders):
    same_results = are_same(ours[0], thunders[0])
    pairs = list(zip(ours[1], thunders[1], strict=True))
    grads = [(a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in pairs]
    return same_results and all(grads) and ours[2:] == thunders[2:]


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


@pytest.mark.parametrize("choice", CHOICES)
def test_whatever_is_returned_is_thunders(choice):
    pair, wants = both(lambda: Model(CHOICES[choice])), "argument" in choice
    for _ in range(3):
        ours, thunders = (look(compiled, X.clone().requires_grad_(wants)) for compiled in pair)
        assert agree(ours, thunders)
    assert [is_short(compiled) for compiled in pair] == [True, False]


def warm(compiled):
    for _ in range(4):
        compiled(X).sum().backward()
    return compiled


class Noting(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


CONTEXTS = {
    "a mode of torch functions": Noting,
    "another default device": lambda: torch.device("cpu"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_in_whatever_context_it_is_called(pair, context):
    ours, thunders = pair
    for _ in range(2):
        with CONTEXTS[context]():
            assert agree(look(ours, X), look(thunders, X))
        assert agree(look(ours, X), look(thunders, X))
        assert torch.is_grad_enabled()


ARGUMENTS = {
    "by name": ((X,), {"bias": torch.ones(4)}),
    "one twice": ((X, X), {}),
    "views of one memory": ((X, X[:1]), {}),
    "numbers": ((X, 2, 1.5), {}),
    "of another size": ((X[:2],), {}),
    "a parameter": ((torch.nn.Parameter(X.clone()),), {}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_with_whatever_arguments_it_is_called(pair, name):
    ours, thunders = pair
    args, kwargs = ARGUMENTS[name]
    for call in ((X,), args, args, (X,), args):
        own = kwargs if call is args else {}
        for compiled in (ours, thunders):
            compiled._model.zero_grad()
        before = count(ours), count(thunders)
        results = [compiled(*call, **own) for compiled in (ours, thunders)]
        assert torch.equal(*results)
        assert [new - old for new, old in zip(count(ours), before[0], strict=True)] == [
            new - old for new, old in zip(count(thunders), before[1], strict=True)
        ]
        for result in results:
            result.sum().backward()
        assert are_same(*([each.grad for each in one._model.parameters()] for one in (ours, thunders)))


def test_the_statistics_of_a_call_are_thunders(pair):
    compiled = pair[0]
    stats = thunder.compile_stats(compiled)
    compiled(X)
    (entry,) = (each for each in stats.interpreter_cache if each.computation_traces is stats.last_traces)
    assert stats.last_traces is entry.computation_traces and stats.last_prologue_traces is entry.prologue_traces
    assert stats.last_prologue is entry.prologue_fn and stats.last_computation is entry.computation_fn
    for name in ("trace_host", "trace_host_execution", "prologue_execution"):
        start, stop = (getattr(stats, f"last_{name}_{end}") for end in ("start", "stop"))
        compiled(X)
        assert start < stop < getattr(stats, f"last_{name}_start")
    assert stats.last_trace_host_start <= stats.last_trace_cache_start <= stats.last_prologue_execution_start


def test_a_saved_tensor_that_was_changed_in_place_raises(pair):
    messages = []
    for compiled in pair:
        x = X.clone()
        output = compiled(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            output.sum().backward()
        messages.append(str(raised.value))
        output = compiled(X)
        with torch.no_grad():
            compiled._model.second.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()
        with torch.no_grad():
            compiled._model.second.weight.sub_(1)
    assert messages[0] == messages[1]


def test_a_second_backward_raises_or_is_right(pair):
    for compiled in pair:
        model = compiled._model
        model.zero_grad()
        output = compiled(X).sum()
        output.backward(retain_graph=True)
        once = [each.grad.clone() for each in model.parameters()]
        output.backward(retain_graph=True)
        assert are_same([each.grad for each in model.parameters()], [2 * each for each in once])
        output.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            output.backward()


def test_differentiating_twice_raises(pair):
    messages = []
    for compiled in pair:
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(compiled(x).sin().sum(), x, create_graph=True)
        try:
            gradient.sum().backward()
            messages.append("")
        except RuntimeError as error:
            messages.append(str(error))
    assert messages[0] == messages[1]


def test_two_calls_before_a_backward_have_their_own_tensors(pair):
    for first in (0, 1):
        results = []
        for compiled in pair:
            compiled._model.zero_grad()
            outputs = [compiled(X), compiled(X + 1)]
            outputs[first].sum().backward()
            outputs[1 - first].cos().sum().backward()
            results.append([each.grad for each in compiled._model.parameters()])
        assert are_same(*results)


def test_autocast_in_backward_is_off_in_there(pair):
    results = []
    for compiled in pair:
        compiled._model.zero_grad()
        output = compiled(X)
        with torch.autocast("cpu", torch.bfloat16):
            output.backward(torch.ones_like(output))
        results.append([each.grad for each in compiled._model.parameters()])
    assert are_same(*results) and not torch.is_autocast_enabled("cpu")


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


def test_a_step_leaves_no_garbage_and_nothing_alive():
    compiled = warm(both()[0])
    while gc.collect():
        pass
    gc.disable()
    try:
        output = compiled(X)
        alive = weakref.ref(output)
        output.sum().backward()
        del output
        assert alive() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_gradients_that_go_another_way_are_not_handed_on():
    for compiled in both():
        compiled(X)
        entries = thunder.compile_stats(compiled).interpreter_cache
        entries[0] = entries[0]._replace(return_none_instead_of_grads=True)
        compiled._model.zero_grad()
        compiled(X).sum().backward()
        assert thunder.cache_hits(compiled) == 1
        assert all(each.grad is None for each in compiled._model.parameters())


def test_functions_that_are_made_otherwise_are_called_as_they_are():
    for compiled in both():
        before = look(compiled, X)
        entries = thunder.compile_stats(compiled).interpreter_cache
        computation, backward = entries[0].computation_fn, entries[0].backward_fn
        wrapped = [Counted(computation), Counted(backward)]
        entries[0] = entries[0]._replace(computation_fn=wrapped[0], backward_fn=wrapped[1])
        assert agree((*look(compiled, X)[:2], [], []), (*before[:2], [], []))
        assert [each.calls for each in wrapped] == [1, 1]


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


def test_several_threads_call_at_a_time(pair):
    ours, thunders = pair
    expected = thunders(X).detach()
    results = []

    def call():
        for _ in range(20):
            results.append(torch.equal(ours(X).detach(), expected))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 60


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
    "options", [{"cache": "no caching"}, {"cache": "same input"}, {"thunderfx_disable_split_autograd": True}]
)
def test_with_other_options_of_thunders_its_own_way_stays(options):
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache(), programs=False)
    compiled = thunder.jit(Model(), executors=fusioncache.executors(), transforms=[transform], **options)
    assert not is_short(compiled)


def test_a_stored_program_is_called_in_the_same_way(tmp_path):
    results = []
    for loaded in (False, True):
        torch.manual_seed(0)
        model = Cell()
        compiled, transform = compile_anew(model, tmp_path)
        results += [step(compiled, model, torch.ones(2, 4)) for _ in range(3)]
        assert transform.stats().programs_loaded == loaded and is_short(compiled)
        (entry,) = thunder.compile_stats(compiled).interpreter_cache
        assert find_inner(entry.computation_fn) is not None and find_inner(entry.backward_fn) is not None
    assert all(are_same(results[0], each) for each in results)
