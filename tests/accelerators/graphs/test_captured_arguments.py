"""What could differ between a capture and a later call, each alone: it is noticed, and the results are right."""

from itertools import pairwise

import pytest
import torch
import torch.utils.checkpoint
from captured_programs import WIDTH, Layer, are_alike, are_equal, compute, make_graphs, make_input, settle, step
from dispatched import Operations

from fusioncache.accelerators.graphs.captures import ForwardFunction
from fusioncache.accelerators.graphs.cuda import find_recorder
from fusioncache.accelerators.graphs.graph_capture import CudaGraphs


@pytest.fixture
def settled():
    """A layer that is captured, one that is not, and the counts."""
    graphs, recorder, ledger = make_graphs()
    layer = Layer(graphs)
    settle(layer)
    return layer, Layer(), recorder, ledger


def change_both(layers, change):
    for layer in layers:
        with torch.no_grad():
            change(layer)


def transpose(layer):
    layer.weight.data = layer.weight.data.t()


def replace(layer):
    layer.weight.data = layer.weight.data * 2


def copy_in(layer):
    layer.weight.copy_(layer.weight * 2)


def load(layer):
    layer.weight.data.copy_(torch.ones(WIDTH, WIDTH) * 0.25)


def exchange(layer):
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 3)


@pytest.mark.parametrize(
    ("change", "captures"),
    [(copy_in, 2), (load, 2), (replace, 4), (exchange, 4)],
    ids=["written in place", "loaded", "moved", "another parameter"],
)
def test_a_weight_that_changes_between_steps(settled, change, captures):
    layer, plain, _, ledger = settled
    change_both((layer, plain), change)
    for seed in range(3):
        assert are_equal(step(layer, make_input(seed)), step(plain, make_input(seed)))
    assert ledger.stats().captures == captures
    assert not ledger.stats().not_captured


def test_a_weight_that_lies_otherwise_at_the_same_address(settled):
    layer, plain, _, ledger = settled
    address, replays = layer.weight.data_ptr(), ledger.stats().graph_replays
    change_both((layer, plain), transpose)
    assert layer.weight.data_ptr() == address
    assert are_equal(step(layer, make_input(1)), step(plain, make_input(1)))
    assert ledger.stats().graph_replays == replays
    for seed in range(2):
        assert are_equal(step(layer, make_input(seed)), step(plain, make_input(seed)))
    assert ledger.stats().captures == 4


@pytest.mark.parametrize("change", [replace, transpose, exchange])
def test_a_weight_that_changes_between_forward_and_backward(settled, change):
    layer, plain, _, ledger = settled
    results = []
    for each in (layer, plain):
        weight, output = each.weight, each(make_input(5))
        with torch.no_grad():
            change(each)
        weight.grad = None
        output.backward(torch.ones_like(output))
        results.append((output.detach(), weight.grad))
    assert are_equal(*results)
    changed = "the tensors saved for backward were replaced"
    assert ledger.stats().not_captured.get(changed, 0) == int(change is not exchange)


def test_a_weight_that_moves_in_each_step_is_copied_at_last(settled):
    layer, plain, recorder, ledger = settled
    for seed in range(8):
        change_both((layer, plain), replace)
        assert are_equal(step(layer, make_input(seed)), step(plain, make_input(seed))), seed
    assert ledger.stats().captures == 6
    assert ledger.stats().graph_replays > 12
    assert recorder.finished == 2


def test_a_gradient_whose_elements_are_one(settled):
    layer, plain, _, ledger = settled

    def act(each, seed):
        output = each(make_input(seed))
        (output.sum() * seed).backward()
        return (output,)

    for seed in range(4):
        assert are_alike(act, layer, plain, seed), seed
    assert not ledger.stats().not_captured
    replays = ledger.stats().graph_replays
    layer(make_input(1)).sum().backward()
    assert ledger.stats().graph_replays == replays + 2


def test_what_is_saved_and_changed_raises_as_without_a_graph(settled):
    layer, plain, _, _ = settled
    for each in (layer, plain):
        x = make_input(1)
        output = each(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def save_only_what_is_computed(x, weight):
    made, ((_, _, hidden), _) = compute(x, weight)
    return made, ((hidden, x @ weight), (2.0,))


def compute_from_these(saved_for_backward, cotangents):
    saved, (factor,) = saved_for_backward
    saved_for_backward.clear()
    (gradient,) = cotangents
    cotangents.clear()
    hidden, scaled = saved
    saved.clear()
    return None, (gradient.sum() * factor * hidden.sum() + scaled.sum()).expand(WIDTH, WIDTH).clone()


@pytest.mark.parametrize("keeps", [False, True])
def test_of_what_only_the_graph_has_one_tensor_is_kept_so_that_a_second_backward_raises(keeps):
    graphs, _, ledger = make_graphs()
    layers = [Layer(given, forward=save_only_what_is_computed, backward=compute_from_these) for given in (graphs, None)]
    for layer in layers:
        settle(layer)
    results = []
    for layer in layers:
        layer.weight.grad = None
        output = layer(make_input(7))
        output.sum().backward(retain_graph=keeps)
        if keeps:
            output.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            output.sum().backward()
        results.append((output.detach(), layer.weight.grad))
    assert are_equal(*results)
    assert ledger.stats().captures >= 2
    output = layers[0](make_input(1))
    assert len(output.grad_fn._raw_saved_tensors) == 1


MATMUL = torch.backends.cuda.matmul


def get_reduced():
    return MATMUL.allow_bf16_reduced_precision_reduction


def set_reduced(value):
    MATMUL.allow_bf16_reduced_precision_reduction = value


SETTINGS = {
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "precision": (get_reduced, set_reduced, False),
    "attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_torch_that_changes(settled, name):
    layer, plain, recorder, ledger = settled
    get, set_, value = SETTINGS[name]
    before, records, replays = get(), recorder.records, ledger.stats().graph_replays
    try:
        set_(value)
        assert are_equal(step(layer, make_input(1)), step(plain, make_input(1)))
        assert ledger.stats().graph_replays == replays
        step(layer, make_input(2))
        assert recorder.records == records + 2
    finally:
        set_(before)
    step(layer, make_input(3))
    assert (recorder.records, ledger.stats().graph_replays) == (records + 2, replays + 4)


def test_a_mode_that_sees_each_operation_sees_them(settled):
    layer, plain, _, ledger = settled
    replays = ledger.stats().graph_replays
    counts = []
    for each in (layer, plain):
        with Operations() as seen:
            step(each, make_input(1))
        counts.append(seen.names)
    assert counts[0] == counts[1]
    assert ledger.stats().graph_replays == replays


def test_hooks_that_save_something_else(settled):
    layer, plain, _, ledger = settled
    results = []
    for each in (layer, plain):
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.float):
            results.append(step(each, make_input(1)))
    assert are_equal(*results)
    assert dict(ledger.stats().not_captured) == {"saved-tensor hooks are active": 1}
    assert are_equal(step(layer, make_input(2)), step(plain, make_input(2)))


def test_hooks_that_replace_what_was_saved(settled):
    layer, plain, _, ledger = settled

    def act(each):
        output = each(make_input(1))
        weight = output.grad_fn._raw_saved_tensors[1]
        weight.register_hooks(torch.Tensor.bfloat16, torch.Tensor.float)
        output.backward(torch.ones_like(output))
        return (output,)

    assert are_alike(act, layer, plain)
    assert dict(ledger.stats().not_captured) == {"the tensors saved for backward were replaced": 1}


def test_what_is_computed_again_for_backward(settled):
    """Torch keeps the second call's saved tensors, and forgets that call."""
    layer, plain, _, _ = settled

    def act(each, seed):
        one, other = (
            torch.utils.checkpoint.checkpoint(each, make_input(seed + place), use_reentrant=False) for place in range(2)
        )
        (one + other).sum().backward()
        return one, other

    for seed in range(3):
        assert are_alike(act, layer, plain, seed), seed


def test_inference_mode_is_no_trap():
    graphs, _, ledger = make_graphs()
    function = lambda x: (x * 2 + 1,)  # noqa: E731
    captured, _ = graphs.capture(ForwardFunction(function, False), None)
    for seed in range(3):
        with torch.inference_mode():
            assert torch.equal(captured(make_input(seed))[0], function(make_input(seed))[0])
    for seed in range(3):
        (result,) = captured(make_input(seed))
        assert torch.equal(result, function(make_input(seed))[0])
        result.add_(1)
    assert ledger.stats().captures == 1


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (lambda: (torch.ones(2), torch.ones(2, device="meta")), "tensors on several devices"),
        (lambda: (1, 2), "no tensor among its arguments"),
        (lambda: (torch.ones(2).to_sparse(),), "it takes a sparse, quantized, conjugated or negated tensor"),
    ],
)
def test_arguments_with_which_nothing_is_captured(args, reason):
    graphs, _, ledger = make_graphs()
    captured, _ = graphs.capture(ForwardFunction(lambda *given: given, False), None)
    given = args()
    for _ in range(4):
        assert all(one is other for one, other in zip(captured(*given), given, strict=True))
    assert dict(ledger.stats().not_captured) == {reason: 1}


def test_on_a_cpu_nothing_is_captured():
    _, _, ledger = make_graphs()
    graphs = CudaGraphs(ledger, find_recorder)
    layer, plain = Layer(graphs), Layer()
    for seed in range(3):
        assert are_equal(step(layer, make_input(seed)), step(plain, make_input(seed)))
    assert dict(ledger.stats().not_captured) == {"tensors on the CPU": 2}


class Named(torch.Tensor):
    pass


def test_a_tensor_of_another_class_runs_as_it_is():
    graphs, _, ledger = make_graphs()
    captured, _ = graphs.capture(ForwardFunction(lambda x: (x + 1,), False), None)
    for seed in range(3):
        captured(make_input(seed))
    replays = ledger.stats().graph_replays
    for _ in range(3):
        (result,) = captured(make_input(1).as_subclass(Named))
        assert type(result) is Named
    assert ledger.stats().graph_replays == replays
    assert dict(ledger.stats().not_captured) == {"it takes a value of type Named": 1}


def test_there_is_a_limit_to_kinds(monkeypatch):
    monkeypatch.setattr("fusioncache.accelerators.graphs.calls.MOST_KINDS", 2)
    graphs, _, ledger = make_graphs()
    captured, _ = graphs.capture(ForwardFunction(lambda x, factor: (x * factor,), False), None)
    for factor in (1, 2, 3, 3, 1, 2):
        assert torch.equal(captured(make_input(1), factor)[0], make_input(1) * factor)
    assert dict(ledger.stats().not_captured) == {"more than 2 kinds of inputs": 2}
    assert ledger.stats().captures == 2


def test_a_capture_that_fails_is_tried_once(settled, recwarn):
    graphs, recorder, ledger = make_graphs()
    recorder.error = RuntimeError("operation not permitted when stream is capturing")
    layer, plain = Layer(graphs), Layer()
    for seed in range(4):
        assert are_equal(step(layer, make_input(seed)), step(plain, make_input(seed)))
    assert dict(ledger.stats().not_captured) == {"capture failed: RuntimeError": 1}
    assert recorder.records == 1
    (warning,) = recwarn
    assert "a forward program runs without a CUDA graph, as it cannot be captured: operation not" in str(
        warning.message
    )


def test_a_backward_whose_capture_fails_leaves_the_forward_captured(recwarn):
    graphs, recorder, ledger = make_graphs()
    layer, plain = Layer(graphs), Layer()
    settle(layer, 1)
    output = layer(make_input(1))
    recorder.error = RuntimeError("no")
    output.sum().backward()
    output = layer(make_input(1))
    output.backward(torch.ones_like(output))
    for seed in range(4):
        assert are_equal(step(layer, make_input(seed)), step(plain, make_input(seed)))
    assert ledger.stats().captures == 1
    assert len(recwarn) == 1


def test_while_the_recorder_is_not_ready_programs_run_as_they_are(settled):
    layer, plain, recorder, ledger = settled
    recorder.unready = "the call is captured by another CUDA graph"
    assert are_equal(step(layer, make_input(1)), step(plain, make_input(1)))
    assert dict(ledger.stats().not_captured) == {"the call is captured by another CUDA graph": 1}
    recorder.unready = None
    replays = ledger.stats().graph_replays
    step(layer, make_input(1))
    assert ledger.stats().graph_replays == replays + 2


def test_random_numbers_are_not_captured():
    graphs, recorder, ledger = make_graphs()
    captured, _ = graphs.capture(ForwardFunction(lambda x: (x * torch.rand(3, WIDTH),), False), None)
    results = [captured(make_input(1))[0] for _ in range(4)]
    assert not any(torch.equal(one, other) for one, other in pairwise(results))
    assert (recorder.records, dict(ledger.stats().not_captured)) == (0, {"random numbers": 1})


def write(x, target):
    target.copy_(x)
    return (target + 1,)


def test_what_is_written_into_an_argument_that_lies_still():
    graphs, _, ledger = make_graphs()
    captured, _ = graphs.capture(ForwardFunction(write, False, writes=True), None)
    x, target = torch.ones(3), torch.zeros(3)
    for value in range(5):
        x.fill_(value)
        assert torch.equal(captured(x, target)[0], x + 1)
        assert torch.equal(target, x)
    assert ledger.stats().graph_replays == 4


@pytest.mark.parametrize("writes", [True, False], ids=["known", "seen in the capture"])
def test_what_is_written_into_an_argument_that_moves_is_not_captured(writes):
    graphs, _, ledger = make_graphs()
    captured, _ = graphs.capture(ForwardFunction(write, False, writes=writes), None)
    for value in range(5):
        x, target = torch.full((3,), float(value)), torch.zeros(3)
        captured(x, target)
        assert torch.equal(target, x)
    assert ledger.stats().captures == 0
    reason = (
        "it writes into arguments whose addresses change"
        if writes
        else "it writes into an argument whose address changes"
    )
    assert dict(ledger.stats().not_captured) == {reason: 1}
