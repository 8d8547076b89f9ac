"""The last product of a program: when it is computed behind the graph, and that all is as if it were captured."""

import ast
import inspect
from types import FunctionType

import pytest
import thunder
import torch
from captured_programs import make_graphs
from fake_graphs import FakeRecorder
from models import are_same
from torch.utils._pytree import tree_leaves

import fusioncache
from fusioncache.accelerators.graphs.buffers import Copier
from fusioncache.accelerators.graphs.captured_forward import BEHIND, ForwardFunction
from fusioncache.accelerators.graphs.graph_capture import Program
from fusioncache.accelerators.steps.last_product import split_last_product

HEAD = """
import torch
import torch.nn.functional
from thunder.executors.torchex import no_autocast

@torch.no_grad()
@no_autocast
def computation(x, w, v):
"""
PROGRAM = """
  t0 = torch.tanh(x)
  t1 = torch.nn.functional.linear(t0, w, None)
  t2 = torch.nn.functional.linear(t1, v, None)
  del t0, t1
  return (t2, x)
"""
TRAINED = """
  t0 = torch.tanh(x)
  t1 = torch.mm(t0, w)
  del w
  return {'output': (t1,), 'flat_args': [x, v], 'flat_output': (t1,)}, ((x, t0), (2.0,))
"""


def make(body: str, head: str = HEAD):
    """The program of this text, and the text."""
    text = head + body.strip("\n")
    known = {}
    exec(compile(text, "program", "exec"), known)
    return known["computation"], text


def split(body: str, *, has_backward: bool = False, head: str = HEAD):
    program, text = make(body, head)
    return split_last_product(inspect.unwrap(program), text, has_backward=has_backward)


def numbers(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 4, generator=generator) for _ in range(3)]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each copy out of a graph's memory was of."""
    counts: list[int] = []
    own = Copier.copy
    monkeypatch.setattr(Copier, "copy", lambda copier: counts.append(copier.count) or own(copier))
    return counts


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    """Products of a few numbers are large enough to be computed behind a graph."""
    monkeypatch.setattr("fusioncache.accelerators.graphs.captured_forward.LEAST_BYTES", 0)


def test_the_operands_live_until_the_product_is_computed():
    found = split(PROGRAM)
    (first, second), operands = found.head(*numbers())
    assert first is BEHIND and torch.equal(second, numbers()[0])
    assert torch.equal(found.compute(operands), make(PROGRAM)[0](*numbers())[0])
    assert found.product is torch.nn.functional.linear and operands[2] is None


def test_what_a_program_saves_is_what_it_saved():
    found = split(TRAINED, has_backward=True)
    (results, (saved, others)), operands = found.head(*numbers())
    assert results["output"] == results["flat_output"] == (BEHIND,)
    assert are_same(saved, make(TRAINED)[0](*numbers())[1][0]) and others == (2.0,)
    assert found.product is torch.mm and operands[0] is saved[1]


WHOLE = {
    "computed with": "  t9 = torch.tanh(v)\n  t0 = torch.mm(x, w)\n  t1 = torch.tanh(t0)\n  return (t0, t1)",
    "viewed": "  t9 = torch.tanh(v)\n  t0 = torch.mm(x, w)\n  t1 = torch.permute(t0, (1, 0))\n  return (t0, t1)",
    "asked for something": "  t9 = torch.tanh(v)\n  t0 = torch.mm(x, w)\n  return (t0.T,)",
    "let go of": "  t9 = torch.tanh(v)\n  t0 = torch.mm(x, w)\n  del t0\n  return (x,)",
    "made twice": "  t9 = torch.tanh(v)\n  t0 = torch.mm(x, w)\n  t0 = torch.mm(x, v)\n  return (t0,)",
    "not the last": "  t0 = torch.tanh(x)\n  t1 = torch.mm(t0, w)\n  t2 = torch.tanh(w)\n  return (t1, t2)",
    "not returned": "  t0 = torch.tanh(x)\n  t1 = torch.mm(t0, w)\n  del t1\n  return (t0,)",
    "all that there is": "  t0 = torch.mm(x, w)\n  return (t0,)",
    "all but views": "  t0 = torch.permute(x, (1, 0))\n  t1 = torch.mm(t0, w)\n  return (t1,)",
    "of what is computed on the way": "  t9 = torch.tanh(v)\n  t0 = torch.mm(torch.tanh(x), w)\n  return (t0,)",
    "with an option": "  t9 = torch.tanh(v)\n  t0 = torch.mm(x, mat2=w)\n  return (t0,)",
    "of another kind": "  t9 = torch.tanh(v)\n  t0 = torch.add(x, w)\n  return (t0,)",
    "returned from two places": "  t9 = torch.tanh(v)\n  t0 = torch.mm(x, w)\n  if x: return t0\n  return (t0,)",
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_product_that_is_not_only_returned_is_captured(name):
    assert split(WHOLE[name]) is None


def test_a_product_that_is_saved_is_captured():
    assert (
        split(
            "  t9 = torch.tanh(w)\n  t0 = torch.mm(x, w)\n  return {'output': (t0,)}, ((x, t0), ())", has_backward=True
        )
        is None
    )


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("@no_autocast\n", ""),
        HEAD.replace("@torch.no_grad()\n", ""),
        HEAD.replace("no_grad", "enable_grad"),
    ],
)
def test_a_program_that_is_called_in_another_way_is_captured_whole(head):
    assert split(PROGRAM, head=head) is None


def test_a_text_of_another_program_says_nothing():
    program, text = make(PROGRAM)
    inner = inspect.unwrap(program)
    others = [text.replace("tanh", "sigmoid"), text.replace("None", "w"), text.replace("(t2, x)", "(t2, w)")]
    others += [f"{text}\ndef another():\n  pass"]
    assert not any(split_last_product(inner, other, has_backward=False) for other in others)
    assert split_last_product(inner, text, has_backward=False) is not None


@pytest.mark.parametrize(("constant", "other"), [("1", "True"), ("0.0", "-0.0")])
def test_constants_that_are_equal_are_not_the_same(constant, other):
    program, text = make(PROGRAM.replace("(t2, x)", f"(t2, {constant})"))
    inner = inspect.unwrap(program)
    assert split_last_product(inner, text, has_backward=False) is not None
    assert split_last_product(inner, text.replace(f"(t2, {constant})", f"(t2, {other})"), has_backward=False) is None


def make_split_function(body: str, *, has_backward: bool = False):
    program, text = make(body)
    inner = inspect.unwrap(program)
    assert isinstance(inner, FunctionType) and ast.parse(text)
    return ForwardFunction(
        program, has_backward, split=lambda: split_last_product(inner, text, has_backward=has_backward)
    )


def test_replays_give_the_product_in_memory_of_its_own():
    graphs, recorder, ledger = make_graphs()
    function = make_split_function(PROGRAM)
    captured, _ = graphs.capture(Program(function, None))
    _, weight, other = numbers(9)
    kept = []
    for seed in range(5):
        x = numbers(seed)[0]
        kept.append((captured(x, weight, other), function.call(x, weight, other)))
        assert kept[-1][0][1] is x
    assert (ledger.stats().captures, ledger.stats().graph_replays) == (1, 4)
    assert all(are_same(found, expected) for found, expected in kept)
    inside = recorder.addresses()
    assert not any(found[0].untyped_storage().data_ptr() in inside for found, _ in kept)


def test_an_operand_that_no_result_may_be_has_the_program_captured_whole():
    graphs, _, ledger = make_graphs()
    body = "  t9 = torch.tanh(w)\n  t0 = torch.Tensor.view(x, torch.int32)\n  t1 = torch.mm(t0, t0)\n  return (t1, t9)"
    function = make_split_function(body)
    assert function.split() is not None
    captured, _ = graphs.capture(Program(function, None))
    for seed in range(4):
        assert are_same(captured(*numbers(seed)), function.call(*numbers(seed)))
    assert ledger.stats().captures == 1 and not ledger.stats().not_captured


@pytest.mark.parametrize("body", [PROGRAM, TRAINED], ids=["linear", "mm"])
@pytest.mark.parametrize("more", [0, 1])
def test_only_a_large_product_is_computed_behind(body, more, monkeypatch, copies):
    monkeypatch.setattr("fusioncache.accelerators.graphs.captured_forward.LEAST_BYTES", 4 * 4 * 4 + more)
    graphs, _, ledger = make_graphs()
    function = make_split_function(body, has_backward=body is TRAINED)
    captured, _ = graphs.capture(Program(function, None))
    for seed in range(4):
        with torch.no_grad():
            found, expected = (tree_leaves(each(*numbers(seed))[0]) for each in (captured, function.call))
        assert are_same(found, expected)
    assert (ledger.stats().captures, copies) == (1, [1] * 3 if more else [])


def test_autocast_changes_nothing_of_it():
    graphs, _, _ = make_graphs()
    function = make_split_function(PROGRAM)
    captured, _ = graphs.capture(Program(function, None))
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            assert captured(*numbers())[0].dtype is torch.float32


class Head(torch.nn.Module):
    """A model that ends with a product, as a language model does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def compile_head(model, store, monkeypatch=None):
    transform = fusioncache.FusionCache(
        cache=fusioncache.Cache(record=False, store=store), backend="eager", graphs=monkeypatch is not None
    )
    if monkeypatch is not None:
        recorder = FakeRecorder()
        monkeypatch.setattr(transform.graphs, "find_recorder", lambda device: recorder)
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), transform


def call(compiled, model, seed: int, trains: bool):
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
    if not trains:
        with torch.no_grad():
            return [compiled(x)]
    model.zero_grad()
    output = compiled(x)
    output.square().sum().backward()
    return [output.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("loads", [True, False])
def test_logits_of_a_model_are_not_copied(trains, loads, tmp_path, monkeypatch, copies):
    torch.manual_seed(0)
    model = Head()
    plain, _ = compile_head(model, False)
    if loads:
        made, _ = compile_head(model, tmp_path)
        call(made, model, 0, trains)
    captured, transform = compile_head(model, tmp_path, monkeypatch)
    kept = [(call(captured, model, seed, trains), call(plain, model, seed, trains)) for seed in range(5)]
    assert all(are_same(*each) for each in kept)
    stats = transform.stats()
    assert stats.programs_loaded == loads and not stats.not_captured
    assert stats.graph_replays == (1 + trains) * (4 if loads else 3)
    assert not copies


def test_a_program_that_somebody_put_something_around_is_captured_whole(monkeypatch, copies):
    monkeypatch.setattr("fusioncache.accelerators.graphs.graph_capture.find_inner", lambda function: None)
    torch.manual_seed(0)
    model = Head()
    (plain, _), (captured, _) = compile_head(model, False), compile_head(model, False, monkeypatch)
    assert all(are_same(call(captured, model, seed, False), call(plain, model, seed, False)) for seed in range(5))
    assert copies == [1] * 3


def test_logits_at_lengths_that_are_filled_in_are_not_copied(tmp_path, monkeypatch, copies):
    captured, transform = compile_head(Head(), tmp_path, monkeypatch)
    for length in (3, 5, 7, 9):
        for _ in range(4):
            captured(torch.ones(length, 8)).sum().backward()
    stats = transform.stats()
    assert stats.programs_filled == 2 and stats.captures == 8
    assert not copies
