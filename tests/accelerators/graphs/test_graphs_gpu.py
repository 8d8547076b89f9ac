"""CUDA graphs on a GPU: the same bits as without them, step for step."""

import copy
import gc

import pytest
import thunder
import torch
from gpu_artifacts import capture
from models import Blocks, compile_with

import fusioncache
from fusioncache.accelerators.graphs.cuda import borrow_workspace

pytestmark = pytest.mark.gpu

WIDTH, ROWS = 16, 6


def compile_model(model, *, graphs, **options):
    return compile_with(model, "auto", fusioncache.Cache(record=False, store=False), graphs=graphs, **options)


def make_pair(model=None, **options):
    """Returns two copies of a model, compiled with graphs and without, and the transform of the former."""
    torch.manual_seed(0)
    model = (Blocks(2) if model is None else model).cuda()
    other = copy.deepcopy(model)
    captured, transform = compile_model(model, graphs=True, **options)
    plain, _ = compile_model(other, graphs=False, **options)
    return (captured, model), (plain, other), transform


def make_input(seed, rows=ROWS):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)).cuda()


def step(compiled, model, x, optimizer=None):
    model.zero_grad()
    output = compiled(x)
    output.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    if optimizer:
        optimizer.step()
    return [output.detach().clone(), *gradients]


def assert_equal(ones, others, what=""):
    torch.cuda.synchronize()
    for place, (one, other) in enumerate(zip(ones, others, strict=True)):
        assert torch.equal(one, other), (what, place, (one - other).abs().max())


def test_what_cannot_be_captured_leaves_everything_as_it_was():
    """The host reads a value during a capture: CUDA invalidates the capture, and torch continues."""
    from fusioncache.accelerators.graphs.cuda import find_recorder

    device = torch.device("cuda", torch.cuda.current_device())
    recorder = find_recorder(device)
    x = torch.ones(4, device=device)

    def read(arguments):
        (value,) = arguments
        arguments.clear()
        drawn = torch.rand(4, device=device)
        return [value + (value * drawn).sum().item()]

    assert recorder.explain_unready() is None
    stream = torch.cuda.current_stream()
    with pytest.raises(Exception, match="captur"):
        recorder.record(read, [x])
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    torch.manual_seed(0)
    expected = torch.rand(4, device=device)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(4, device=device), expected)
    for _ in range(2):
        recording = recorder.record(lambda arguments: [arguments.pop() + 1], [x])
        recording.replay()
        torch.cuda.synchronize()
        assert torch.equal(recording.results[0], x + 1)


def test_a_model_that_is_dropped_leaves_its_memory_to_others():
    def reserve():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def train():
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(4)]
        model = torch.nn.Sequential(*layers).cuda()
        compiled, transform = compile_model(model, graphs=True)
        for _ in range(4):
            model.zero_grad()
            compiled(torch.randn(2**16, 512, device="cuda")).sum().backward()
        assert transform.stats().captures == 2, transform.stats().not_captured
        return torch.cuda.memory_reserved()

    train()
    before = reserve()
    assert train() > before + 2**29
    assert reserve() <= before + 2**27  # cuBLAS keeps some memory for each stream


def test_a_call_that_another_graph_captures():
    torch.manual_seed(0)
    compiled, transform = compile_model(
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()).cuda(), graphs=True
    )
    x = make_input(0)
    with torch.no_grad():
        for _ in range(4):
            expected = compiled(x)
        graph, result = capture(compiled, x)
        x.mul_(2)
        graph.replay()
        torch.cuda.synchronize()
        assert not torch.equal(result, expected)
        assert torch.equal(result, compiled(x))
    assert transform.stats().not_captured == {"the call is captured by another CUDA graph": 1}


def test_a_call_on_another_stream_runs_as_it_is():
    (captured, model), (plain, other), transform = make_pair()
    for seed in range(4):
        step(captured, model, make_input(seed))
    stream = torch.cuda.Stream()
    x = make_input(9)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        one = step(captured, model, x)
    torch.cuda.current_stream().wait_stream(stream)
    assert_equal(one, step(plain, other, x))
    assert set(transform.stats().not_captured) == {"another stream than that of the first call"}


class Deep(torch.nn.Module):
    """A model whose products are so deep that cuBLAS adds them up in its workspace."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16384, 64, bias=False), torch.nn.Linear(64, 16384)

    def forward(self, x):
        return self.first(torch.tanh(self.last(torch.tanh(self.first(x)))))


def clear_workspaces():
    """Clears workspaces as torch does before it captures with reduce-overhead, and allocates that memory for others."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return [torch.full((2**21,), 7.0, device="cuda") for _ in range(32)]


@pytest.mark.parametrize("captures_again", [False, True])
def test_workspaces_of_cublas_that_torch_lets_go_of(captures_again):
    torch.manual_seed(0)
    models = [Deep().cuda().bfloat16()]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), graphs=True)
    first, second = (
        thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]) for model in models[:2]
    )
    plain, _ = compile_model(models[2], graphs=False)
    inputs = [torch.randn(64, 16384, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    for x in inputs:  # the first capture allocates the workspace, and is deleted below
        step(first, models[0], x)
    del first
    models[0] = None
    gc.collect()
    if captures_again:
        kept = clear_workspaces()
    for x in inputs:
        step(second, models[1], x)
    kept = clear_workspaces()
    for x in inputs:
        assert_equal(step(second, models[1], x), step(plain, models[2], x))
    assert all((each == 7).all() for each in kept)
    assert transform.stats().captures == 4 and not transform.stats().not_captured


def test_streams_of_captures_are_given_to_no_other_caller():
    device = torch.device("cuda", 0)
    borrowers = [Deep() for _ in range(2)]
    workspaces = [borrow_workspace(device, borrower) for borrower in borrowers]
    streams = {each.stream.cuda_stream for each in workspaces}
    assert len(streams) == 2
    assert not streams & {torch.cuda.Stream().cuda_stream for _ in range(64)}
    del borrowers[0]
    assert borrow_workspace(device, borrowers[0]) is workspaces[0]


def test_attention_of_litgpt_with_the_same_bits():
    litgpt = pytest.importorskip("litgpt")
    config = litgpt.Config.from_name(
        "Llama-2-7b-hf", n_layer=2, n_embd=256, n_head=4, intermediate_size=512, padded_vocab_size=512
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = litgpt.GPT(config).to(torch.bfloat16)
    (captured, model), (plain, other), transform = make_pair(model)
    for seed in range(5):
        tokens = torch.randint(0, 512, (2, 64), generator=torch.Generator().manual_seed(seed)).cuda()
        results = []
        for compiled, each in ((captured, model), (plain, other)):
            each.zero_grad()
            output = compiled(tokens)
            output.float().square().mean().backward()
            results.append([output.detach().clone(), *[parameter.grad.clone() for parameter in each.parameters()]])
        assert_equal(results[0][:1], results[1][:1], seed)
        for one, two in zip(*results, strict=True):  # attention's gradients are summed in any order
            assert torch.allclose(
                one.float(), two.float(), rtol=0.05, atol=1e-3 * float(two.float().abs().max() + 1e-6)
            )
    assert transform.stats().graph_replays >= 4, transform.stats().not_captured


def test_the_peak_of_memory_is_that_of_the_largest_length():
    """Lengths whose steps do not overlap have their saved tensors in the same memory."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(8)]
    ).cuda()
    compiled, transform = compile_model(model, graphs=True, sizes="static")
    reserved = []
    for rows in (4096, 4000, 3900, 3800):
        for _ in range(4):
            model.zero_grad()
            compiled(torch.randn(rows, 512, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert transform.stats().captures == 8, transform.stats().not_captured
    assert reserved[-1] < 1.6 * reserved[0], reserved


def test_gradients_outlive_the_model_and_its_graphs():
    (captured, model), (plain, other), transform = make_pair()
    for seed in range(4):
        one, two = step(captured, model, make_input(seed)), step(plain, other, make_input(seed))
    kept = [parameter.grad for parameter in model.parameters()]
    del captured, model, transform, one
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    noise = [torch.full((2**size,), torch.nan, device="cuda") for size in range(4, 24)]
    again, model = make_pair()[0]
    for seed in range(4):
        step(again, model, make_input(seed))
    assert_equal(kept, two[1:])
    assert len(noise) == 20
