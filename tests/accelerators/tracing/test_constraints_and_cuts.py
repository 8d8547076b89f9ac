"""What shortcuts compute otherwise than Thunder and networkx: the same constraints, and the same sides of a cut."""

import networkx
from hypothesis import given
from hypothesis import strategies as st
from thunder.core import jit_ext, rematerialization
from thunder.core.proxies import Proxy

from fusioncache import tracing
from fusioncache.thunder_adapter.shortcuts import traces
from fusioncache.thunder_adapter.shortcuts.values import index_constraints


class Context:
    def __init__(self):
        self._constraints = []


def make_proxy(name):
    proxy = jit_ext.ProxyInterface.__new__(Proxy)
    proxy._name = name
    return proxy


proxies = st.sampled_from([make_proxy(name) for name in "aab"])
checks, values = st.sampled_from([len, max]), st.sampled_from([1, 2, 1.0, "a", float("nan")])
constraints = st.one_of(
    st.just((min,)),
    st.tuples(checks, proxies),
    st.tuples(checks, proxies, values),
    st.tuples(st.just(sum), proxies, proxies),
)


@given(st.lists(st.tuples(constraints, st.booleans()), max_size=30))
def test_constraints_are_thunders(given):
    """The same ones, in the same order, also where other code has put some there, or they are on no proxy."""
    own, ours = Context(), Context()
    own_add = jit_ext.JitCtx.add_constraint
    add = index_constraints(own_add)
    for constraint, is_ours in given:
        for context, function in ((own, own_add), (ours, add)):
            function(context, constraint) if is_ours else context._constraints.append(constraint)
        assert ours._constraints == own._constraints


def test_a_constraint_is_compared_with_those_on_the_same_proxy():
    own_add, compared, context = jit_ext.JitCtx.add_constraint, [], Context()
    add = index_constraints(lambda self, constraint: compared.append([*self._constraints]) or own_add(self, constraint))
    for proxy in map(make_proxy, "abab"):
        add(context, (len, proxy))
    assert len(context._constraints) == 2 and list(map(len, compared)) == [0, 0, 1, 1]


NAMES = ("source", "a", "b", "c", "d", "sink")
CAPACITIES = (0.0, 0.5, 1.0, 2.0, 4.0, float("inf"))
nodes = st.sampled_from(NAMES)
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
