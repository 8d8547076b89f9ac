"""The cut that stands in for networkx' one: the same sides, not only a cut of the same value."""

import networkx
from hypothesis import given
from hypothesis import strategies as st
from thunder.core import rematerialization

from fusioncache import tracing
from fusioncache.thunder_adapter.shortcuts import traces

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
    tracing.uninstall()
    tracing.install(["min_cut"])
    assert rematerialization.nx is networkx
