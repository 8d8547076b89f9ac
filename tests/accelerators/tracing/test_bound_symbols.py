"""Traces and their symbols, real ones and made-up ones, with and without shortcuts: what passes make is the same."""

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from thunder.core import devices, dtypes, prims, proxies, pytree, transform_common, utils
from thunder.core.proxies import Variable
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.utils import Region

from fusioncache import tracing
from fusioncache.thunder_adapter.shortcuts import symbols, traces


@dataclass
class Dual:
    """A data class of these tests: once it was in a tree, Thunder takes it for a container in the whole process.

    With ``VJPDual`` in its place Thunder could not differentiate any more what ``thunderfx`` hands to it.
    """

    primal: Any
    residuals: Any


def tensor(name):
    return proxies.TensorProxy(name, shape=(2,), device=devices.cpu, dtype=dtypes.float32, requires_grad=True)


with tracectx(TraceCtx()):
    A, B, C, D = (tensor(name) for name in "abcd")
    N = proxies.IntegerProxy("n", value=1)
    PAIR = proxies.TupleProxy((A, 1), name="pair")


def made_up():
    with tracectx(TraceCtx()):
        collection = proxies.CollectionProxy([A, [B]], name="collection")
    trees = [(), (A, 1), (A, B, None), ([A, {"y": B, "x": N}], "s"), (Dual(A, (B, C)),), (torch.Size([2]),), (PAIR,)]
    trees += [(collection,), (A, 2.0, dtypes.float32, slice(A, N))]
    for args in trees:
        for output in (None, A, [A, N], (C, (D,)), {"b": A, "a": C}, PAIR):
            for kwargs in ({}, {"z": A, "a": (B,)}):
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
SYMBOLS = [*made_up(), *TRACED]


def copy(symbol):
    """A copy that has computed nothing yet."""
    return BoundSymbol(*(getattr(symbol, name) for name in BoundSymbol.__dataclass_fields__))


def described(value):
    """Everything that a symbol or a tree is, proxies by name."""
    if isinstance(value, BoundSymbol):
        return {name: described(getattr(value, name)) for name in BoundSymbol.__dataclass_fields__ if name != "sym"}
    if isinstance(value, proxies.CollectionProxy):
        return ("collection", value.name, described(value.coll))
    if isinstance(value, proxies.Proxy):
        return (type(value), value.name, id(value))
    if isinstance(value, Dual):
        return (Dual, described(value.primal), described(value.residuals))
    if isinstance(value, dict):
        return (type(value), [(key, described(each)) for key, each in value.items()])
    return (type(value), [described(each) for each in value]) if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("name", ["flat_args", "flat_outs", "flat_proxy_args", "flat_proxy_outs"])
def test_leaves_are_found_alike(name):
    shortcut, found = getattr(symbols, f"shorten_{name}")(vars(BoundSymbol)[name]), 0
    for symbol in SYMBOLS:
        slow, fast = copy(symbol), copy(symbol)
        expected, result = getattr(slow, name), shortcut.__get__(fast, BoundSymbol)
        assert type(expected) is type(result) and len(expected) == len(result) and vars(fast)[name] is result
        assert all(one is other for one, other in zip(expected, result, strict=True))
        found += len(result)
    assert found > 50


CHAIN = {Variable(A): B, Variable(B): C, Variable(C): C}
SWAPS = [({}, {}), (CHAIN, {}), ({Variable(N): A, Variable(D): 7}, {})]
SWAPS += [({Variable(A): D}, {f"skip_{part}": True}) for part in ("inputs", "output", "subsymbols")]


@pytest.mark.parametrize(("swap_map", "flags"), SWAPS, ids=str)
def test_proxies_are_exchanged_alike(monkeypatch, swap_map, flags):
    """Each way has symbols of its own: what is in a collection is exchanged in place."""
    original = BoundSymbol.from_bsym_swap_proxies
    slow = [original(symbol, swap_map, **flags) for symbol in (*made_up(), *TRACED)]
    shortcut = symbols.shorten_swap(original)
    monkeypatch.setattr(BoundSymbol, "from_bsym_swap_proxies", shortcut)
    again = [*made_up(), *TRACED]
    fast = [shortcut(symbol, swap_map, **flags) for symbol in again]
    assert list(map(described, slow)) == list(map(described, fast))
    assert all((new is old) is (not swap_map) for new, old in zip(fast, again, strict=True))
    assert (list(map(described, fast)) == list(map(described, (*made_up(), *TRACED)))) is (not swap_map)


def test_proxies_are_ordered_alike():
    original = transform_common.order_proxies
    expected, result = original(SYMBOLS), symbols.shorten_order_proxies(original)(SYMBOLS)
    assert list(result.items()) == list(expected.items()) and len(result) > 20


TREES = [symbol.args for symbol in made_up()] + [A, None, [A, (B, 1)], {"b": A, "a": [B]}, torch.Size([2]), PAIR]


def test_trees_are_mapped_alike():
    def replace(leaf):
        seen.append(leaf)
        return len(seen)

    original = pytree.tree_map
    fast = symbols.shorten_tree_map(original)
    for tree in TREES:
        found = []
        for function in (original, fast):
            seen = []
            found += [(described(function(replace, tree)), list(map(described, seen)))]
        assert found[0] == found[1]
    assert fast(lambda one, other: (one, other), (1, 2), (3, (4,))) == ((1, 3), (2, (4,)))
    assert fast(len, ([1], [2, 3]), is_leaf=lambda tree: isinstance(tree, list)) == (1, 2)


@pytest.mark.parametrize("numbers", [False, True])
def test_producers_are_alike(numbers):
    fast = traces.shorten_producers(utils.producers)
    for bsyms in (TRACED, list(made_up()), SimpleNamespace(bound_symbols=TRACED)):
        expected, result = (function(bsyms, _map_to_numbers=numbers) for function in (utils.producers, fast))
        assert list(result._dict) == list(expected._dict) and type(result) is type(expected)
        assert list(map(described, result._dict.values())) == list(map(described, expected._dict.values()))
    assert len(result._dict) > 20


def test_the_same_operations_within_operations_are_dead():
    kept = {"tags": {prims.OpTags.DONT_DCE}}

    def add(*subsymbols, symbol=prims.add, output=A, tags=()):
        return BoundSymbol(symbol, (A,), {}, output, subsymbols=list(subsymbols), tags=set(tags))

    def composite(*subsymbols, **options):
        return add(*subsymbols, symbol=thunder.torch.add, **options)

    def trees():
        printed = add(symbol=prims.python_print, output=None)
        yield composite(add(), composite(), add(output=None), composite(add(output=2), composite()))
        yield composite(composite(**kept), add(output=None))
        yield composite(add(output=None), composite(**kept), add(output=None))
        yield composite(composite(composite(**kept)), add(output=()), add(output=(None, A)))
        yield composite(printed, add(output=None), composite(printed, output=None))
        yield from TRACED

    original = transform_common._remove_noop_subsymbols
    fast = traces.shorten_remove_noop(original)
    changed = 0
    for tree, one, other in zip(trees(), copies(trees()), copies(trees()), strict=True):
        original(one)
        fast(other)
        assert described(one) == described(other)
        changed += described(one) != described(tree)
    assert changed >= 3


def copies(symbols):
    for symbol in symbols:
        new = copy(symbol)
        new.subsymbols = list(copies(symbol.subsymbols))
        yield new


def without_time(trace):
    return str(trace).rpartition("milliseconds")[2] or str(trace)


@pytest.mark.parametrize("groups", [(), ("symbols",), ("symbols", "lookups")], ids=str)
def test_dead_code_is_found_alike(groups):
    original = transform_common.dce
    fast = traces.shorten_dce(original)
    tracing.install(groups)
    kept = []
    for trace in TRACES:
        needed = [{Variable(each) for each in trace.bound_symbols[0].flat_proxy_outs} for _ in range(2)]
        assert without_time(original(trace, needed[0])) == without_time(fast(trace, needed[1]))
        assert {each.proxy.name for each in needed[0]} == {each.proxy.name for each in needed[1]}
        kept.append(len(fast(trace).bound_symbols))
        assert kept[-1] == len(original(trace).bound_symbols)
    assert kept[0] < len(TRACES[0].bound_symbols)


def test_numbers_that_are_returned_twice_are_removed_by_thunder():
    with tracectx(TraceCtx()):
        outputs = [(N,), (N, 2), (N,)]
        bsyms = [*(prims.shape.bind(A, output=output) for output in outputs), prims.sin.bind(A, output=A)]
    original = transform_common.remove_duplicate_number_proxies
    for some in (bsyms, bsyms[3:], bsyms[1:3], []):
        slow, fast = original(some), symbols.shorten_remove_duplicates(original)(some)
        assert [each.output for each in slow] == [each.output for each in fast]


def make_region(make, *args):
    region = object.__new__(Region)
    make(region, *args)
    return [[each.proxy.name for each in some] for some in (region.inputs, region.outputs)]


def test_regions_take_and_give_the_same():
    original, seen = vars(Region)["__init__"], 0
    for trace in TRACES:
        producers, consumers = utils.producers(trace), utils.consumers(trace)
        bsyms = [each for each in trace.bound_symbols if each.flat_proxy_outs and each.flat_proxy_args]
        for begin, end in [(0, len(bsyms)), *pairwise(range(0, len(bsyms) + 1, 3))]:
            for some in (bsyms[begin:end], [each.from_bsym() for each in bsyms[begin:end]]):
                expected = make_region(original, producers, consumers, some)
                assert make_region(traces.shorten_region(original), producers, consumers, some) == expected
                seen += sum(map(bool, expected))
    assert seen > 4
