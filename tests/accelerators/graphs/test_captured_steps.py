"""Training steps with captured forward and backward have the same results as without graphs in all situations."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.utils.checkpoint
from captured_programs import Layer, are_alike, are_equal, compute, go_back, make_graphs, make_input, settle, step
from dispatched import Operations
from program_keys import setting

from fusioncache.accelerators.graphs import memory
from fusioncache.accelerators.graphs.captures import ForwardFunction
from fusioncache.accelerators.graphs.cuda import find_recorder
from fusioncache.accelerators.graphs.graph_capture import CudaGraphs
from fusioncache.accelerators.graphs.memory import LENT

CHANGES = {
    "copied into": (lambda layer: layer.weight.copy_(layer.weight * 2), 1, 2),
    "loaded": (lambda layer: layer.weight.data.fill_(0.25), 1, 2),
    "replaced": (lambda layer: setattr(layer.weight, "data", layer.weight.data * 2), 1, 4),
    "exchanged": (lambda layer: setattr(layer, "weight", torch.nn.Parameter(layer.weight.detach() * 3)), 1, 4),
    "transposed": (lambda layer: setattr(layer.weight, "data", layer.weight.data.t()), 1, 4),
}
CHANGES["replaced in each step"] = CHANGES["replaced"][0], 8, 6  # it is copied at last
"""For each change of a weight: the change, the number of steps that it precedes, and the number of captures."""


@torch.no_grad()
def change_both(layers, change):
    for layer in layers:
        change(layer)


@pytest.mark.parametrize(("change", "times", "captures"), CHANGES.values(), ids=CHANGES)
def test_a_weight_that_changes_between_steps(settled, change, times, captures):
    layers, _, ledger = settled
    for seed in range(times + 2):
        if seed < times:
            change_both(layers, change)
        assert are_alike(layers, step, seed), seed
    stats = ledger.stats()
    assert (stats.captures, dict(stats.not_captured)) == (captures, {})
    assert stats.graph_replays >= 2 * times


def two_outputs(each, seed):
    one, other = each(make_input(seed)), each(make_input(seed + 10))
    go_back(one)
    go_back(other)
    return one, other


def keep_the_graph(each, seed):
    output = each(make_input(seed))
    for _ in range(2):
        go_back(output, retain_graph=True)
    go_back(output)
    return (output,)


def keep_the_graph_over_steps(each, seed):
    output = each(make_input(seed))
    go_back(output, retain_graph=True)
    for other in range(3):
        go_back(each(make_input(other)))
    go_back(output)
    return (output,)


def give_a_gradient_whose_elements_are_one(each, seed):
    output = each(make_input(seed))
    (output.sum() * seed).backward()
    return (output,)


def compute_again_for_backward(each, seed):
    """Torch stores the saved tensors of the second call, and drops its autograd graph."""
    one, other = (
        torch.utils.checkpoint.checkpoint(each, make_input(seed + place), use_reentrant=False) for place in range(2)
    )
    (one + other).sum().backward()
    return one, other


def replace_what_was_saved(each, seed):
    output = each(make_input(seed))
    output.grad_fn._raw_saved_tensors[1].register_hooks(torch.Tensor.bfloat16, torch.Tensor.float)
    go_back(output)
    return (output,)


def transpose_what_was_saved(each, seed):
    output = each(make_input(seed))
    each.weight.data = each.weight.data.t()
    go_back(output)
    each.weight.data = each.weight.data.t()
    return (output,)


SAVED, REPLACED = "saved-tensor hooks are active", "the tensors saved for backward were replaced"
KEPT, OVERLAP = "a backward pass with retain_graph=True", "a call before the backward pass of the previous call"
ACTS = {
    two_outputs: (4, {OVERLAP}),
    keep_the_graph: (2, {KEPT}),
    keep_the_graph_over_steps: (8, {KEPT, OVERLAP}),
    give_a_gradient_whose_elements_are_one: (2, set()),
    compute_again_for_backward: (0, {SAVED}),
    replace_what_was_saved: (1, {REPLACED}),
    transpose_what_was_saved: (1, {REPLACED}),
}
"""Ways to take a step, with the number of replays at the end, and the reasons why calls were not captured."""


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["from the start", "when warm", "when captured"])
@pytest.mark.parametrize("act", ACTS)
def test_what_happens_in_a_step(captured, act, steps):
    layers, _, ledger = captured
    settle(layers[0], steps)
    for seed in range(4):
        assert are_alike(layers, act, seed), seed
    replays, reasons = ACTS[act]
    before = ledger.stats().graph_replays
    act(layers[0], 1)
    assert ledger.stats().graph_replays == before + replays
    assert reasons - {OVERLAP} <= set(ledger.stats().not_captured) <= reasons
    assert are_alike(layers, step, 6)


def test_what_is_saved_and_changed_raises_as_without_a_graph(settled):
    for each in settled[0]:
        x = make_input(1)
        output = each(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def save_only_what_is_computed(x, weight):
    made, ((_, _, hidden), others) = compute(x, weight)
    return made, ((x + 0, weight + 0, hidden), others)


@pytest.mark.parametrize("keeps", [False, True])
def test_of_what_only_the_graph_has_one_tensor_is_kept_so_that_a_second_backward_raises(keeps):
    graphs, _, ledger = make_graphs()
    layers = [Layer(given, forward=save_only_what_is_computed) for given in (graphs, None)]
    settle(layers[0])

    def act(each):
        output = each(make_input(7))
        output.sum().backward(retain_graph=keeps)
        if keeps:
            output.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            output.sum().backward()
        return (output,)

    assert are_alike(layers, act)
    assert ledger.stats().captures >= 2
    assert len(layers[0](make_input(1)).grad_fn._raw_saved_tensors) == 1


MATMUL = torch.backends.cuda.matmul
SETTINGS = {
    name: (partial(getattr, MATMUL, name), partial(setattr, MATMUL, name), value)
    for name, value in (("allow_bf16_reduced_precision_reduction", False), ("fp32_precision", "tf32"))
} | {
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
}


@pytest.mark.parametrize(("get", "set_", "value"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_of_torch_that_changes(settled, get, set_, value):
    layers, recorder, ledger = settled
    records, replays = recorder.records, ledger.stats().graph_replays
    with setting(get, set_, value):
        assert are_alike(layers, step, 1)
        assert ledger.stats().graph_replays == replays
        step(layers[0], 2)
        assert recorder.records == records + 2
    step(layers[0], 3)
    assert (recorder.records, ledger.stats().graph_replays) == (records + 2, replays + 4)


@contextmanager
def capture_the_call(graphs, recorder):
    recorder.unready = "the call is captured by another CUDA graph"
    yield
    recorder.unready = None


@contextmanager
def replay_on_another_thread(graphs, recorder):
    of_device = graphs.memory_of(torch.device("cpu"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(of_device.begin).result() is None
        yield
        pool.submit(of_device.end).result()


AS_THEY_ARE = {
    "something else is saved": (
        lambda *_: torch.autograd.graph.saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.float),
        {SAVED: 1},
    ),
    "each operation is seen": (lambda *_: Operations(), {"a torch mode that intercepts each operation is active": 2}),
    "the call is captured": (capture_the_call, {"the call is captured by another CUDA graph": 1}),
    "another thread replays": (replay_on_another_thread, {"another thread replays": 1}),
}


@pytest.mark.parametrize(("meanwhile", "reasons"), AS_THEY_ARE.values(), ids=AS_THEY_ARE)
def test_where_programs_run_as_they_are_and_are_replayed_afterwards(settled, graphs, meanwhile, reasons):
    layers, recorder, ledger = settled
    replays = ledger.stats().graph_replays
    found = []
    for each in layers:
        with meanwhile(graphs, recorder) as seen:
            found.append((*step(each, 1), Counter(seen and seen.names)))
    assert are_equal(found[0][:2], found[1][:2]) and found[0][2] == found[1][2]
    assert (ledger.stats().graph_replays, dict(ledger.stats().not_captured)) == (replays, reasons)
    assert are_alike(layers, step, 2)
    assert (ledger.stats().graph_replays, dict(ledger.stats().not_captured)) == (replays + 2, reasons)


def test_on_a_cpu_nothing_is_captured(captured):
    _, _, ledger = captured
    layers = Layer(CudaGraphs(ledger, find_recorder)), Layer()
    assert all(are_alike(layers, step, seed) for seed in range(3))
    assert dict(ledger.stats().not_captured) == {"tensors on the CPU": 2}


@pytest.mark.parametrize(("program", "captures"), [("forward", 0), ("backward", 1)])
def test_a_capture_that_fails_is_tried_once(captured, recwarn, program, captures):
    layers, recorder, ledger = captured
    settle(layers[0], captures)
    output = layers[0](make_input(1)) if captures else None
    recorder.error = RuntimeError("operation not permitted when stream is capturing")
    if captures:
        go_back(output)
    assert all(are_alike(layers, step, seed) for seed in range(4))
    assert dict(ledger.stats().not_captured) == {"capture failed: RuntimeError": 1}
    assert (ledger.stats().captures, recorder.records) == (captures, captures + 1)
    (warning,) = recwarn
    said = f"a {program} program runs without a CUDA graph, as it cannot be captured: operation not"
    assert said in str(warning.message)


def test_a_backward_on_another_stream_is_waited_for(settled):
    """Replays do not wait for that stream, and would overwrite memory that it reads."""
    layers, recorder, ledger = settled
    finished = recorder.finished

    def change_the_stream(each):
        output = each(make_input(5))
        recorder.unready = "another stream than that of the first call"
        go_back(output)
        return (output,)

    assert are_alike(layers, change_the_stream)
    assert recorder.finished == finished + 1
    assert dict(ledger.stats().not_captured) == {recorder.unready: 1}
    recorder.unready = None
    step(layers[0], 6)
    assert recorder.finished == finished + 1


def test_what_is_called_least_goes_and_what_was_called_since_others_stays(captured, monkeypatch, graphs):
    monkeypatch.setattr(memory, "MOST_CAPTURES", 2)
    pair, recorder, ledger = captured
    layers = [pair, *((Layer(graphs), Layer()) for _ in range(2))]
    captures = []
    for number, steps in ((0, 3), (1, 3), (0, 1), (2, 3), (0, 1), (1, 1)):
        assert all(are_alike(layers[number], step, seed) for seed in range(steps))
        layers[number][0].weight.grad = None
        captures.append(ledger.stats().captures)
    assert captures == [2, 4, 4, 6, 6, 8]
    assert recorder.finished == 2


def zero_in_place(layer, optimizer, seed):
    optimizer.zero_grad(set_to_none=seed == 3)
    go_back(layer(make_input(seed)))
    optimizer.step()


def add_up_in_one_backward(layer, optimizer, seed):
    optimizer.zero_grad()
    outputs = [layer(make_input(4 * seed + part)) for part in range(3)]
    torch.stack(outputs).square().sum().backward()
    optimizer.step()


def step_in_a_hook(layer, optimizer, seed):
    def take(weight):
        optimizer.step()
        weight.grad = None

    handle = layer.weight.register_post_accumulate_grad_hook(take)
    go_back(layer(make_input(seed)))
    handle.remove()


WAYS = {zero_in_place: 3, add_up_in_one_backward: 11, step_in_a_hook: 2}
"""Ways to train, with the number of captures that each needs."""


@pytest.mark.parametrize(("train", "captures"), WAYS.items())
def test_ways_to_train_settle_on_a_few_captures_and_copy_no_gradient(captured, train, captures):
    layers, _, ledger = captured
    optimizers = [torch.optim.SGD([each.weight], 0.01, momentum=0.9) for each in layers]
    for seed in range(10):
        for each, optimizer in zip(layers, optimizers, strict=True):
            train(each, optimizer, seed)
        assert torch.equal(*(each.weight for each in layers)), seed
    stats = ledger.stats()
    assert (stats.captures, stats.gradients_copied) == (captures, 0)
    assert LENT not in stats.not_captured


def test_models_one_after_the_other_whose_gradients_are_added_up():
    """Each layer's backward is replayed while gradients leased by the layers after it are not returned yet."""
    graphs, _, ledger = make_graphs()
    ones, others = [Layer(graphs) for _ in range(3)], [Layer() for _ in range(3)]
    for seed in range(10):
        for layers in (ones, others):
            for part in range(3):
                x = make_input(3 * seed + part)
                for layer in layers:
                    x = layer(x)
                x.square().sum().backward()
        for one, other in zip(ones, others, strict=True):
            assert torch.equal(one.weight.grad, other.weight.grad), seed
            one.weight.grad = other.weight.grad = None
    stats = ledger.stats()
    assert (stats.captures, stats.gradients_copied, dict(stats.not_captured)) == (9, 0, {})


@pytest.mark.parametrize("most", [1, 32])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_held_in_whatever_order(monkeypatch, seed, most):
    """Steps of two models, each alone or both in sequence, whose outputs wait for their backward pass.

    Gradients are held for a while, and a program without a backward is called at any time.
    """
    monkeypatch.setattr(memory, "MOST_CAPTURES", most)
    graphs, _, ledger = make_graphs()
    draw = random.Random(seed)
    pairs = [(Layer(graphs), Layer()) for _ in range(2)]
    look, _ = graphs.capture(ForwardFunction(lambda x: (x.exp().cos(), x + 1), False), None)
    waiting, held = [], []
    for number in range(200):
        pair, x = draw.choice(pairs), make_input(number)
        act = draw.choice(["forward", "both", "look", "backward", "backward", "none", "zero", "hold", "drop"])
        if act == "look":
            held.append([torch.cat(look(x)), torch.cat([x.exp().cos(), x + 1])])
        elif act == "both":
            waiting.append([behind(layer(x)) for layer, behind in zip(*pairs, strict=True)])
        elif act == "forward" or not waiting:
            waiting.append([layer(x) for layer in pair])
        elif act == "backward" or len(waiting) > 3:
            for output in waiting.pop(draw.randrange(len(waiting))):
                go_back(output)
        elif act == "drop":
            del held[: draw.randrange(3)]
        elif pair[0].weight.grad is not None:
            if act == "hold":
                held.append([layer.weight.grad.detach()[1:] for layer in pair])
            for layer in pair:
                if act == "zero":
                    layer.weight.grad.zero_()
                else:
                    layer.weight.grad = None
        there = [[layer.weight.grad for layer in pair] for pair in pairs if pair[0].weight.grad is not None]
        assert all(torch.equal(one, other) for one, other in held + there), (number, act)
    assert ledger.stats().graph_replays > 40
