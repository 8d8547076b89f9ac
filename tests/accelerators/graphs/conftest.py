"""Fixtures with layers for tests of captures."""

import gc

import pytest
from captured_programs import Layer, make_graphs, settle


@pytest.fixture(autouse=True)
def _quick_collections():
    """Freezes earlier objects, so that collections examine only objects of the test."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def graphs_and_counts():
    return make_graphs()


@pytest.fixture
def graphs(graphs_and_counts):
    return graphs_and_counts[0]


@pytest.fixture
def captured(graphs_and_counts):
    """A captured layer and a plain one, the recorder, and the ledger."""
    graphs, recorder, ledger = graphs_and_counts
    return (Layer(graphs), Layer()), recorder, ledger


@pytest.fixture
def settled(captured):
    """The same, after forward and backward were captured."""
    settle(captured[0][0])
    return captured
