"""Layers that tests of captures share."""

import gc

import pytest
from captured_programs import Layer, make_graphs, settle


@pytest.fixture(autouse=True)
def _quick_collections():
    """Collections look at what the test made alone."""
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
    """A layer that is captured and one that is not, the recorder, and the counts."""
    graphs, recorder, ledger = graphs_and_counts
    return (Layer(graphs), Layer()), recorder, ledger


@pytest.fixture
def settled(captured):
    """The same, where forward and backward are captured."""
    settle(captured[0][0])
    return captured
