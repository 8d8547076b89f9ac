"""What a forward program saved stays until its backward took it, whatever else is replayed meanwhile."""

import pytest
import torch
from captured_programs import Layer, are_alike, are_equal, make_graphs, make_input, settle, step

from fusioncache.accelerators.graphs import memory
from fusioncache.accelerators.graphs.captures import ForwardFunction

OVERLAP = "a call before the backward pass of the previous call"
KEPT = "a backward pass with retain_graph=True"


@pytest.fixture
def graphs_and_counts():
    return make_graphs()


@pytest.fixture
def graphs(graphs_and_counts):
    return graphs_and_counts[0]


@pytest.fixture
def captured(graphs_and_counts):
    """A layer that is captured, one that is not, what captures, and the counts."""
    graphs, recorder, ledger = graphs_and_counts
    return Layer(graphs), Layer(), recorder, ledger


def backward(output):
    output.backward(torch.ones_like(output))


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["from the start", "when warm", "when captured"])
def test_two_forwards_before_the_backward_of_the_first(captured, steps):
    layer, plain, _, ledger = captured
    settle(layer, steps)

    def act(each, seed):
        one, other = each(make_input(seed)), each(make_input(seed + 10))
        backward(one)
        backward(other)
        return one, other

    for seed in range(4):
        assert are_alike(act, layer, plain, seed), seed
    replays = ledger.stats().graph_replays
    one, other = layer(make_input(1)), layer(make_input(2))
    backward(one)
    backward(other)
    assert ledger.stats().graph_replays == replays + 4  # by now there is a capture for each
    assert ledger.stats().not_captured.get(OVERLAP, 0) <= 1


def test_a_graph_that_is_kept_is_gone_through_again(captured):
    layer, plain, _, ledger = captured
    settle(layer)

    def act(each):
        output = each(make_input(5))
        for _ in range(2):
            output.backward(torch.ones_like(output), retain_graph=True)
        backward(output)
        return (output,)

    assert are_alike(act, layer, plain)
    assert dict(ledger.stats().not_captured) == {KEPT: 2}
    assert are_equal(step(layer, make_input(6)), step(plain, make_input(6)))
    assert ledger.stats().not_captured[KEPT] == 2


def test_while_a_graph_is_kept_nothing_overwrites_what_it_saved(captured):
    layer, plain, _, _ = captured
    settle(layer)

    def act(each):
        output = each(make_input(5))
        output.backward(torch.ones_like(output), retain_graph=True)
        for seed in range(3):
            backward(each(make_input(seed)))
        backward(output)
        return (output,)

    assert are_alike(act, layer, plain)


def test_saved_memory_goes_to_others_when_it_is_not_needed(captured, graphs):
    """Forward and backward of one layer need no more than those of another one after it."""
    layer, _, recorder, _ = captured
    settle(layer)
    before = len(recorder.pool.blocks)
    assert len(recorder.pool.free()) == before
    other = Layer(graphs)
    settle(other)
    assert len(recorder.pool.blocks) == before


def test_a_program_between_forward_and_backward_of_another(captured, graphs):
    """It was captured when nothing was leased, so its memory may be what the other one saved in."""
    layer, plain, _, ledger = captured
    look, _ = graphs.capture(ForwardFunction(lambda x: (x.exp().cos(), x + 1), False), None)
    for seed in range(3):
        look(make_input(seed))
    settle(layer)
    assert ledger.stats().captures == 3
    for seed in range(6):
        results = []
        for each, between in ((layer, look), (plain, lambda x: (x.exp().cos(), x + 1))):
            each.weight.grad = None
            output = each(make_input(seed))
            seen = between(make_input(seed + 1))
            backward(output)
            results.append((output.detach(), each.weight.grad, *seen))
        assert are_equal(*results), seed
    # From then on there is a capture of it that leaves alone what was leased.
    replays = ledger.stats().graph_replays
    output = layer(make_input(1))
    look(make_input(2))
    backward(output)
    assert ledger.stats().graph_replays == replays + 3


def test_what_is_called_least_goes(captured, monkeypatch, graphs):
    monkeypatch.setattr(memory, "MOST_CAPTURES", 1)
    layer, plain, recorder, ledger = captured
    second, plain_second = Layer(graphs), Layer()
    for one, other in ((layer, plain), (second, plain_second), (layer, plain)):
        for seed in range(4):
            assert are_equal(step(one, make_input(seed)), step(other, make_input(seed)))
    assert ledger.stats().captures == 6
    assert recorder.finished == 2


def test_a_forward_that_waits_for_its_backward_does_not_go(captured, monkeypatch, graphs):
    monkeypatch.setattr(memory, "MOST_CAPTURES", 1)
    layer, plain, _, ledger = captured
    second = Layer(graphs)
    settle(layer, 2)
    settle(second, 2)
    output, expected = layer(make_input(5)), plain(make_input(5))
    step(second, make_input(1))
    step(second, make_input(2))
    layer.weight.grad = plain.weight.grad = None
    backward(output)
    backward(expected)
    assert torch.equal(layer.weight.grad, plain.weight.grad)
    captures = ledger.stats().captures
    step(layer, make_input(6))
    assert ledger.stats().captures == captures


def test_another_thread_runs_its_program_as_it_is(captured, graphs):
    from concurrent.futures import ThreadPoolExecutor

    layer, plain, _, ledger = captured
    settle(layer)
    memory_ = graphs.memory_of(torch.device("cpu"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(memory_.begin).result() is None
        assert are_equal(step(layer, make_input(2)), step(plain, make_input(2)))
        assert dict(ledger.stats().not_captured) == {"another thread replays": 1}
        pool.submit(memory_.end).result()
    assert are_equal(step(layer, make_input(3)), step(plain, make_input(3)))
    assert ledger.stats().not_captured["another thread replays"] == 1


def test_a_backward_on_another_stream_is_waited_for(captured):
    """Replays do not wait for that stream, and would overwrite what it reads."""
    layer, plain, recorder, ledger = captured
    settle(layer)
    output, expected = layer(make_input(5)), plain(make_input(5))
    layer.weight.grad = plain.weight.grad = None
    finished = recorder.finished
    recorder.unready = "another stream than that of the first call"
    backward(output)
    backward(expected)
    assert torch.equal(layer.weight.grad, plain.weight.grad)
    assert recorder.finished == finished + 1
    assert dict(ledger.stats().not_captured) == {recorder.unready: 1}
    recorder.unready = None
    step(layer, make_input(6))
    assert recorder.finished == finished + 1
