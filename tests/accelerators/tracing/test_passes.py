"""Functions that passes call, constraints and cuts: the same answers and errors with and without shortcuts."""

import inspect
import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from functools import partial, wraps
from itertools import pairwise, product

import networkx
import pytest
import thunder
import torch
from hypothesis import given
from hypothesis import strategies as st
from thunder.core import (
    codeutils,
    devices,
    dtypes,
    jit_ext,
    prims,
    proxies,
    pytree,
    rematerialization,
    transform_common,
    utils,
)
from thunder.core.proxies import Variable
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.utils import Region
from torch.fx.immutable_collections import immutable_list

from fusioncache import tracing
from fusioncache.thunder_adapter.shortcuts import symbols, traces
from fusioncache.thunder_adapter.shortcuts.values import index_constraints

ADDRESS = re.compile(" at 0x[0-9a-f]+")
FIELDS = [name for name in BoundSymbol.__dataclass_fields__ if name != "sym"]


@dataclass
class Pair:
    """A data class of these tests: once one is flattened, Thunder treats the class as a container in the whole process.

    If ``VJPDual`` became a container, Thunder could no longer differentiate graphs from ``thunderfx``.
    """

    left: object
    right: object


Named = namedtuple("Named", "b a")


def tensor(name):
    return proxies.TensorProxy(name, shape=(2,), device=devices.cpu, dtype=dtypes.float32, requires_grad=True)


with tracectx(TraceCtx()):
    A, B, C, D = map(tensor, "abcd")
    N = proxies.IntegerProxy("n", value=3)
    PAIR = proxies.TupleProxy((A, 1), name="pair")
    LIST = proxies.CollectionProxy([A], name="list")
LEAVES = [A, N, PAIR, LIST, 1, 1.5, True, "a", None, 1j, ..., dtypes.float32, dtypes.bool8, devices.cpu, {1, 2}]
LEAVES += [torch.float32, torch.device("cpu"), int, slice(1, 2), torch.Size([2, 3]), immutable_list([1, A]), object()]
LEAVES += [Named(2, 1), Pair(A, (1, 2)), dtypes.uint8, dtypes.complex64, Variable(A), slice(A, N)]
TREES = [*LEAVES, *((leaf, {"b": [leaf, None], "a": {}}) for leaf in LEAVES)]
TREES += [
    {2: A, "a": 1, None: 3},
    OrderedDict(b=1, a=A),
    ((), [], {}),
    (A, B, None),
    [A, {"y": B, "x": N}],
    (PAIR, 2.0),
]


def make_up():
    with tracectx(TraceCtx()):
        collection = proxies.CollectionProxy([A, [B]], name="collection")
    trees = [(), (A, 1), (A, B, None), ([A, {"y": B, "x": N}], "s"), (Pair(A, (B, C)),), (torch.Size([2]),), (PAIR,)]
    trees += [(collection,), (A, 2.0, dtypes.float32, slice(A, N))]
    outputs = (None, A, [A, N], (C, (D,)), {"b": A, "a": C}, PAIR)
    for args, output, kwargs in product(trees, outputs, ({}, {"z": A, "a": (B,)})):
        yield BoundSymbol(prims.add, args, kwargs, output, header="header")


def program(x, weight):
    unused = x.exp()
    x, index = torch.max(torch.softmax(x @ weight, -1), -1)
    unused.sin()
    return torch.cat([x, x * 2]), index, torch.nn.functional.dropout(x, 0.5), x.shape[0] + 1


def trace_program():
    tracing.uninstall()
    compiled = thunder.jit(program)
    compiled(torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True))
    yield from thunder.last_traces(compiled)
    yield from thunder.last_prologue_traces(compiled)
    yield from thunder.last_backward_traces(compiled)


TRACES = [*trace_program()]
TRACED = [symbol for trace in TRACES for symbol in trace.bound_symbols]


def describe(value):
    """Returns a comparable description of a value: proxies by identity, traces without the time that they took."""
    if isinstance(value, BoundSymbol):
        return {name: describe(getattr(value, name)) for name in FIELDS}
    if isinstance(value, proxies.CollectionProxy):
        return ("collection", value.name, describe(value.coll))
    if isinstance(value, proxies.Proxy):
        return (type(value), value.name, id(value))
    if isinstance(value, TraceCtx):
        return str(value).rpartition("milliseconds")[2] or str(value)
    if isinstance(value, utils.ProxyDict):
        return (type(value), describe(value._dict))
    if isinstance(value, Region):
        return [[each.proxy.name for each in some] for some in (value.inputs, value.outputs)]
    if isinstance(value, codeutils.ContextObject):
        return (type(value), value.name, describe(value.obj))
    if isinstance(value, Pair):
        return (type(value), describe(value.left), describe(value.right))
    if isinstance(value, dict):
        return (type(value), [(key, describe(each)) for key, each in value.items()])
    if isinstance(value, tuple | list):
        return (type(value), [describe(each) for each in value])
    return (type(value), ADDRESS.sub("", repr(value)), getattr(value, "namespace", None))


def outcome(function, *args, **kwargs):
    """Returns the description of a call's result, or the type and text of its error."""
    try:
        return describe(function(*args, **kwargs))
    except Exception as error:
        return type(error), ADDRESS.sub("", str(error))


def copy(symbol):
    """Returns a copy of a symbol and of all symbols in it, without cached properties."""
    values = {name: getattr(symbol, name) for name in BoundSymbol.__dataclass_fields__}
    return BoundSymbol(**values | {"subsymbols": list(map(copy, symbol.subsymbols))})


def ask_for_leaves(found, symbol):
    """Returns a cached property of a symbol, and whether it was stored."""
    new, (name,) = copy(symbol), {getattr(found, "attrname", None) or found.__name__}
    result = found.__get__(new, BoundSymbol)
    return result, vars(new)[name] is result


def ask_to_map(tree_map, tree):
    seen = []
    return tree_map(lambda leaf: seen.append(leaf) or len(seen), tree), seen


def ask_to_print(to_printable, tree):
    """Returns the printed tree, and the imports, objects and names that were noted for it."""
    imports, objects, trace = {}, {}, TraceCtx()
    printed = to_printable(trace, tree, import_ctx=imports, object_ctx=objects)
    return printed, [*imports], [*objects], sorted(trace.names)


def ask_to_normalize(normalize, meta, args, names):
    given = dict(names)
    return normalize(Symbol("name", meta), *args, **given), given


def ask_to_remove(remove_noop, symbol):
    new = copy(symbol)
    remove_noop(new)
    return new


def ask_for_live(dce, trace, needs):
    needed = {Variable(each) for each in trace.bound_symbols[0].flat_proxy_outs} if needs else None
    return dce(trace, needed), sorted(each.proxy.name for each in needed or ())


def ask_for_region(make, *args):
    region = object.__new__(Region)
    make(region, *args)
    return region


@wraps(lambda a, *, b, c=3: None)
def wrapping(*args, **kwargs):
    pass


def lying(*args):
    pass


lying.__signature__ = inspect.signature(wrapping)


class Callable:
    def __call__(self, a, b=1):
        pass


METAS = [lambda a, b=2: None, lambda a, *, b, c=3: None, lambda a, *rest, b=None: None, lambda a, **names: None]
METAS += [lambda a, /, b=1: None, wrapping, lying, Callable(), partial(Callable(), 1), int.bit_length]
NAMES = [{}, {"a": 1}, {"b": 2}, {"b": 2, "a": 1}, {"c": 1, "b": 2}, {"d": 1}]
USUAL = {"shape": (2, 3), "device": devices.cpu, "dtype": dtypes.float32, "requires_grad": True}
KINDS_OF_TENSORS = {
    "shape": [(), (2, 3), [4], (0,), (-1,), (True, 2), (2.5,), None, 3, (N,)],
    "dtype": [*sorted(dtypes.all_dtypes, key=str), None, float, int, torch.float32, "float32", dtypes.uint64],
    "device": [None, "cpu", torch.device("cpu")],
    "distparallel_type": [*proxies.DistParallelType, None, "none"],
    "thunder_fsdp_padding_size": [2],
    "like": [A],
}


def list_kinds_of_tensors():
    changes = [{name: value} for name, some in KINDS_OF_TENSORS.items() for value in some]
    for flag, dtype in product((True, False, None), (dtypes.int64, dtypes.float64)):
        changes += [{"requires_grad": flag, "dtype": dtype}, {"grad": A, "requires_grad": flag}]
    return [USUAL | each for each in (*changes, {"like": A, **dict.fromkeys(USUAL)})]


def list_dead():
    kept = {"tags": {prims.OpTags.DONT_DCE}}

    def add(*subsymbols, symbol=prims.add, output=A, tags=()):
        return BoundSymbol(symbol, (A,), {}, output, subsymbols=list(subsymbols), tags=set(tags))

    def composite(*subsymbols, **options):
        return add(*subsymbols, symbol=thunder.torch.add, **options)

    printed = add(symbol=prims.python_print, output=None)
    return [
        composite(add(), composite(), add(output=None), composite(add(output=2), composite())),
        composite(composite(**kept), add(output=None)),
        composite(add(output=None), composite(**kept), add(output=None)),
        composite(composite(composite(**kept)), add(output=()), add(output=(None, A))),
        composite(printed, add(output=None), composite(printed, output=None)),
    ]


def list_regions():
    for trace in TRACES:
        known = utils.producers(trace), utils.consumers(trace)
        bsyms = [each for each in trace.bound_symbols if each.flat_proxy_outs and each.flat_proxy_args]
        for begin, end in [(0, len(bsyms)), *pairwise(range(0, len(bsyms) + 1, 3))]:
            yield *known, bsyms[begin:end]
            yield *known, [each.from_bsym() for each in bsyms[begin:end]]


def call(function, *args):
    return function(*args)


MADE_UP = [*make_up()]
SYMBOLS = [(each,) for each in (*MADE_UP, *TRACED)]
ALL = [(tree,) for tree in (*TREES, *(symbol.args for symbol in MADE_UP))]
CASES = {
    "flatten": (call, pytree.tree_flatten, symbols.shorten_flatten, ALL),
    "flatten for optree": (
        lambda flatten, tree: flatten(tree, namespace="thunder"),
        *(pytree.tree_flatten, symbols.shorten_flatten, [(tree,) for tree in TREES]),
    ),
    "data classes": (call, pytree.tree_flatten_with_dataclass, symbols.shorten_with_dataclass, ALL),
    "map": (ask_to_map, pytree.tree_map, symbols.shorten_tree_map, ALL),
    **{
        name: (ask_for_leaves, vars(BoundSymbol)[name], getattr(symbols, f"shorten_{name}"), SYMBOLS)
        for name in ("flat_args", "flat_outs", "flat_proxy_args", "flat_proxy_outs")
    },
    "no operation": (
        *(ask_to_remove, transform_common._remove_noop_subsymbols, traces.shorten_remove_noop),
        [(symbol,) for symbol in (*list_dead(), *TRACED)],
    ),
    "dead code": (ask_for_live, transform_common.dce, traces.shorten_dce, [*product(TRACES, (False, True))]),
    "regions": (ask_for_region, vars(Region)["__init__"], traces.shorten_region, [*list_regions()]),
    "arguments": (
        *(ask_to_normalize, vars(Symbol)["normalize"], symbols.shorten_normalize),
        [*product(METAS, [(), (1,), (1, 2), (1, 2, 3)], NAMES)],
    ),
    "what is printed": (
        ask_to_print,
        codeutils.to_printable,
        symbols.shorten_to_printable,
        [(tree,) for tree in TREES],
    ),
    "what tensors are": (
        lambda infer, options: infer(**options),
        *(proxies._infer_tensor_properties, symbols.shorten_infer_properties),
        [(each,) for each in list_kinds_of_tensors()],
    ),
}
"""For each case: how to call the function, Thunder's function, its shortcut, and the arguments."""


@pytest.mark.parametrize(("ask", "own", "shorten", "inputs"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("groups", [(), ("symbols", "mapping")], ids=str)
def test_answers_are_thunders_own(ask, own, shorten, inputs, groups):
    expected, shortcut = [outcome(ask, own, *args) for args in inputs], shorten(own)
    tracing.install(groups)
    assert len({*map(str, expected)}) > 1
    for args, answer in zip(inputs, expected, strict=True):
        assert outcome(ask, shortcut, *args) == answer, args


CHAIN = {Variable(A): B, Variable(B): C, Variable(C): C}
SWAPS = [({}, {}), (CHAIN, {}), ({Variable(N): A, Variable(D): 7}, {})]
SWAPS += [({Variable(A): D}, {f"skip_{part}": True}) for part in ("inputs", "output", "subsymbols")]


@pytest.mark.parametrize(("swap_map", "flags"), SWAPS, ids=str)
def test_proxies_are_exchanged_alike(monkeypatch, swap_map, flags):
    """Each way gets its own symbols, because proxies in a collection are swapped in place."""
    original = BoundSymbol.from_bsym_swap_proxies
    slow = [original(symbol, swap_map, **flags) for symbol in (*make_up(), *TRACED)]
    shortcut = symbols.shorten_swap(original)
    monkeypatch.setattr(BoundSymbol, "from_bsym_swap_proxies", shortcut)
    again = [*make_up(), *TRACED]
    fast = [shortcut(symbol, swap_map, **flags) for symbol in again]
    assert describe(slow) == describe(fast)
    assert all((new is old) is (not swap_map) for new, old in zip(fast, again, strict=True))
    assert (describe(fast) == describe([*make_up(), *TRACED])) is (not swap_map)


def test_several_trees_are_mapped_together():
    fast = symbols.shorten_tree_map(pytree.tree_map)
    assert fast(lambda one, other: (one, other), (1, 2), (3, (4,))) == ((1, 3), (2, (4,)))
    assert fast(len, ([1], [2, 3]), is_leaf=lambda tree: isinstance(tree, list)) == (1, 2)


def test_defaults_that_are_changed_are_seen():
    def meta(a, b=1, *, c=2):
        pass

    fast = symbols.shorten_normalize(vars(Symbol)["normalize"])
    assert fast(Symbol("name", meta), 0) == ((0, 1), {"c": 2})
    meta.__defaults__, meta.__kwdefaults__["c"] = (5,), 6
    assert fast(Symbol("name", meta), 0) == ((0, 5), {"c": 6})


class Context:
    def __init__(self):
        self._constraints = []


def make_proxy(name):
    proxy = object.__new__(proxies.Proxy)
    proxy._name = name
    return proxy


named = st.sampled_from([make_proxy(name) for name in "aab"])
checks, values = st.sampled_from([len, max]), st.sampled_from([1, 2, 1.0, "a", float("nan")])
constraints = st.one_of(
    st.just((min,)),
    st.tuples(checks, named),
    st.tuples(checks, named, values),
    st.tuples(st.just(sum), named, named),
)


@given(st.lists(st.tuples(constraints, st.booleans()), max_size=30))
def test_constraints_are_thunders(given):
    """They are the same in the same order, also if other code added some, or if they are about no proxy."""
    own, ours = Context(), Context()
    own_add = jit_ext.JitCtx.add_constraint
    add = index_constraints(own_add)
    for constraint, is_ours in given:
        for context, function in ((own, own_add), (ours, add)):
            function(context, constraint) if is_ours else context._constraints.append(constraint)
        assert ours._constraints == own._constraints


NODES = ("source", "a", "b", "c", "d", "sink")
CAPACITIES = (0.0, 0.5, 1.0, 2.0, 4.0, float("inf"))
nodes = st.sampled_from(NODES)
edges = st.lists(st.tuples(nodes, nodes, st.sampled_from(CAPACITIES)), min_size=1, max_size=16)


def cut_by(module, found):
    graph = module.DiGraph()
    graph.add_edges_from((one, other, {"capacity": capacity}) for one, other, capacity in found)
    try:
        return module.minimum_cut(graph, "source", "sink")
    except Exception as error:
        return type(error), str(error)


@given(edges)
def test_the_sides_are_those_of_networkx(found):
    expected, result = cut_by(networkx, found), cut_by(traces.shorten_networkx(networkx), found)
    assert result == expected


def test_another_implementation_of_networkx_is_left_alone(monkeypatch):
    monkeypatch.setattr(networkx.config.backend_priority, "algos", ["networkx"])
    tracing.install(["min_cut"])
    assert rematerialization.nx is networkx
