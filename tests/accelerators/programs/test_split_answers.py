"""The splitter's answers: reused only if everything that an answer depends on is the same."""

import threading

import pytest
import thunder
import thunder.torch as ltorch
import torch
from behind_dynamo import compile_behind_dynamo
from own_tensors import Own
from thunder.common import CompileData
from thunder.dynamo import utils
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import fusioncache
from fusioncache.accelerators.programs import key, programs, splits
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.function_map import KeyCache
from fusioncache.accelerators.programs.splits import (
    SupportedOperations,
    describe_operation,
    make_answers_key,
    read_answers,
    store_answers,
    wrap_try_execute,
)
from fusioncache.ir.errors import Declined
from fusioncache.store.entry import SPLITS_SLOT


def open_store(path):
    return fusioncache.Cache(record=False, store=path).store


def make_key():
    return make_answers_key(CompileData(fn=lambda: None, disable_preprocessing=True), KeyCache())[0]


def make_node(*args, **kwargs):
    """Returns an operation of a graph: each tensor among its arguments is the result of another one."""
    graph = torch.fx.Graph()

    def place(value):
        if not isinstance(value, torch.Tensor | tuple | torch.SymInt):
            return value
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["example_value"] = value
        return node

    return graph.call_function(torch.add, tuple(map(place, args)), {name: place(each) for name, each in kwargs.items()})


def describe(*args, symbol=ltorch.add, options=(), **kwargs):
    return describe_operation(Definitions(Describer()), symbol, make_node(*args, **kwargs), options)


def own_addition(x, y):
    return x + y


def make_symbolic(length):
    sizes = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    return mode.from_tensor(torch.ones(length, 3), symbolic_context=sizes, source=ConstantSource("x"))


def make_unknown():
    with FakeTensorMode(shape_env=(shapes := ShapeEnv())):
        return torch.empty(shapes.create_unbacked_symint(), 3)


X, SYMBOLIC = torch.ones(2, 3), make_symbolic(5)
OPERATIONS = {
    "the operation": lambda: describe(X, 1.0),
    "another symbol": lambda: describe(X, 1.0, symbol=ltorch.sub),
    "another shape": lambda: describe(torch.ones(3, 2), 1.0),
    "another dtype": lambda: describe(X.double(), 1.0),
    "another device": lambda: describe(torch.ones(2, 3, device="meta"), 1.0),
    "a tensor that requires a gradient": lambda: describe(torch.ones(2, 3, requires_grad=True), 1.0),
    "tensors in a tuple": lambda: describe((X,), 1.0),
    "another number": lambda: describe(X, 2.0),
    "a dtype": lambda: describe(X, torch.float32),
    "a slice": lambda: describe(X, slice(None, 1)),
    "a keyword": lambda: describe(X, other=1.0),
    "another keyword": lambda: describe(X, alpha=1.0),
    "a symbolic size": lambda: describe(SYMBOLIC, 1.0),
    "another symbolic size": lambda: describe(make_symbolic(4), 1.0),
    "a number": lambda: describe(X, 5),
    "a symbolic number": lambda: describe(X, SYMBOLIC.shape[0]),
    "another symbolic number": lambda: describe(X, make_symbolic(4).shape[0]),
    "an option": lambda: describe(X, 1.0, options={"disable_torch_autograd": "True"}.items()),
}


def test_operations_that_differ_in_one_thing_are_not_the_same():
    one, again = ({name: make() for name, make in OPERATIONS.items()} for _ in range(2))
    assert one == again and None not in one.values()
    assert len(set(one.values())) == len(one)


UNDESCRIBED = {
    "a function of the user's": lambda: describe(X, 1.0, symbol=own_addition),
    "a tensor of the user's": lambda: describe(X.as_subclass(Own), 1.0),
    "a sparse tensor": lambda: describe(X.to_sparse(), 1.0),
    "an operand without an example": lambda: describe(torch.fx.Graph().placeholder("x"), 1.0),
    "an object": lambda: describe(X, threading.Lock()),
    "an unknown size": lambda: describe(X, ShapeEnv().create_unbacked_symint()),
    "a tensor of an unknown size": lambda: describe(make_unknown(), 1.0),
}


def test_what_is_not_known_to_be_the_same_is_asked_for():
    assert {name: make() for name, make in UNDESCRIBED.items()} == dict.fromkeys(UNDESCRIBED)


def test_a_symbolic_size_is_described_by_its_example():
    assert describe(SYMBOLIC, 1.0) == describe(torch.ones(5, 3), 1.0)


CHANGES = {
    "the default dtype": lambda patch: patch.setattr(torch, "get_default_dtype", lambda: torch.float64),
    "a variable": lambda patch: patch.setenv("THUNDER_ANNOTATE_TRACES", "1"),
    "the sources": lambda patch: patch.setattr(key, "read_versions", lambda: [("thunder.sources", "other")]),
    "a flag of Thunder's": lambda patch: patch.setattr(thunder.core.prims, "NEW_FLAG", True, raising=False),
}


def test_what_answers_depend_on_is_in_their_key(monkeypatch):
    key = make_key()
    for name, change in CHANGES.items():
        with monkeypatch.context() as patch:
            change(patch)
            assert make_key() != key, name
        assert make_key() == key


FOREIGN = {
    "a function of Thunder's": lambda patch: patch.setattr(thunder.clang, "maybe_convert_to_dtype", own_addition),
    "a function of the splitter's": lambda patch: patch.setattr(utils, "get_proxy_inputs_from_node", own_addition),
    "a function for an operation": lambda patch: patch.setitem(
        ltorch._torch_to_thunder_function_map, X.sinc, own_addition
    ),
}


def test_where_others_take_part_or_a_mode_does_nothing_is_taken_over(monkeypatch):
    with FakeTensorMode(), pytest.raises(Declined, match="a torch mode is active"):
        make_key()
    for change in FOREIGN.values():
        with monkeypatch.context() as patch:
            change(patch)
            with pytest.raises(Declined, match=r"Thunder may run .*own_addition, and nothing records"):
                make_key()


def test_answers_add_up_in_the_store_and_broken_ones_are_gone(tmp_path):
    store, key = open_store(tmp_path), make_key()
    assert read_answers(store, key) == frozenset()
    store_answers(store, key, {"a"})
    store_answers(store, key, {"b"})
    assert read_answers(open_store(tmp_path), key) == {"a", "b"}
    store.remove(key, SPLITS_SLOT)
    store.save(key, SPLITS_SLOT, {"answers": b"{}"})
    with pytest.warns(RuntimeWarning, match="answers that do not decode"):
        assert read_answers(store, key) == frozenset()
    assert store.entries() == ()


def test_supported_is_remembered_and_not_supported_is_asked_again(tmp_path, monkeypatch):
    asked = []

    def ask(symbol, node, options):
        asked.append(node.args[1])
        return (True, None) if node.args[1] == 1.0 else (False, "a reason")

    ask_once = wrap_try_execute(ask)
    for expected in ([1.0, 2.0], [2.0]):
        memory = SupportedOperations()  # as in another process
        monkeypatch.setattr(splits, "split_memory_of_process", lambda memory=memory: memory)
        asked.clear()
        with memory.answering(open_store(tmp_path)):
            answers = [ask_once(ltorch.add, make_node(X, number), {}) for number in (1.0, 2.0)]
        assert answers == [(True, None), (False, "a reason")] and asked == expected
        assert memory.current is None


class Net(torch.nn.Module):
    """Thunder lacks ``sinc``."""

    def forward(self, x):
        return torch.sinc(torch.tanh(x) * 2.0).sum()


def test_a_graph_is_split_alike_with_the_answers_of_an_earlier_process(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(splits, "store_answers", lambda *given: (kept.append(len(given[2])), store_answers(*given)))
    results = []
    for _ in range(2):
        memory = SupportedOperations()
        for module in (splits, programs):
            monkeypatch.setattr(module, "split_memory_of_process", lambda memory=memory: memory)
        compiled, _ = compile_behind_dynamo(Net(), tmp_path)
        inputs = [torch.ones(length, requires_grad=True) for length in (3, 5)]
        for x in inputs:  # the sizes of the second graph are symbolic
            compiled(x).backward()
        infos = compiled._backend.subgraph_infos
        parts = [(len(info.thunder_compiled_fns), len(info.split_reasons)) for info in infos]
        results.append((parts, [x.grad.tolist() for x in inputs]))
    assert results[0] == results[1] and len(results[0][0]) == len(kept) == 2 and 0 < kept[0] < kept[1]
