"""Tests that need a GPU: real nvFuser kernels, cached and uncached, bit for bit."""

from contextlib import nullcontext

import pytest
import thunder
import torch
from models import Blocks, Residual, are_same, find_all_fused, find_fused, recompute, step

import fusioncache
from fusioncache.template.plan import Plan
from fusioncache.transform import sharing

pytestmark = pytest.mark.gpu


def cached(model, **options):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache())
    return thunder.jit(model, transforms=[transform], **options), transform


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("recomputed", [False, True])
def test_training_a_residual_stream(layers, recomputed):
    model = Residual(layers).cuda()
    x = torch.randn(10, 10, device="cuda", requires_grad=True)
    with recompute() if recomputed else nullcontext():
        compiled, transform = cached(model)
        result = step(compiled, model, x)
        assert are_same(result, step(thunder.jit(model), model, x))
    assert not transform.stats().bypasses
    assert transform.stats().regions == 4 * layers + 1


@pytest.mark.parametrize("plan", ["fold", "auto"])
def test_compiles_do_not_grow_with_depth(plan):
    def counts(layers):
        model = Residual(layers).cuda()
        with recompute():
            transform = fusioncache.FusionCache(cache=fusioncache.Cache(), residual=plan)
            compiled = thunder.jit(model, transforms=[transform])
            step(compiled, model, torch.randn(10, 10, device="cuda", requires_grad=True))
        return transform.stats().templates, transform.stats().compiles

    assert counts(16) == counts(18) == counts(21)  # from 32 terms on there is a fold of every width


def stream(x, *terms):
    for term in terms:
        x = x + term
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("plan", list(Plan))
@pytest.mark.parametrize("adds", [1, 2, 3, 9, 20])
def test_plans_are_bitwise_the_region(dtype, plan, adds, monkeypatch):
    def function(*inputs):
        x = stream(*inputs)
        return torch.tanh(x) * 2 + 1, x, torch.amax(x, -1)

    monkeypatch.setattr(sharing, "choose_plan", lambda *_: plan)
    inputs = [torch.randn(64, 513, device="cuda", dtype=dtype) for _ in range(adds + 1)]
    compiled, transform = cached(function)
    assert are_same(list(compiled(*inputs)), list(thunder.jit(function)(*inputs)))
    assert not transform.stats().bypasses


def normed(*inputs):
    x = stream(*inputs)
    return x, torch.nn.functional.rms_norm(x, (x.shape[-1],)), torch.softmax(x, -1), x.float().sum()


def normed_three_times(*inputs):
    """Three arities of one template in one trace: more than are inlined where folding is allowed."""
    return [value for count in (3, 5, 9) for value in normed(*inputs[:count])]


@pytest.mark.parametrize("function", [normed, normed_three_times])
def test_reductions_behind_a_float32_stream_keep_every_bit(function):
    inputs = [torch.randn(64, 513, device="cuda") for _ in range(9)]
    compiled, _ = cached(function)
    assert are_same(list(compiled(*inputs)), list(thunder.jit(function)(*inputs)))


def test_reductions_behind_a_folded_bfloat16_stream_may_add_in_another_order(monkeypatch):
    """The sum keeps every bit. Its reductions are within one rounding to bfloat16, or a few of float32."""
    monkeypatch.setattr(sharing, "choose_plan", lambda *_: Plan.FOLD)
    inputs = [torch.randn(64, 513, device="cuda", dtype=torch.bfloat16) for _ in range(9)]
    compiled, _ = cached(normed)
    (x, *ours), (plain_x, *theirs) = compiled(*inputs), thunder.jit(normed)(*inputs)
    assert torch.equal(x, plain_x)
    for one, other in zip(ours, theirs, strict=True):
        step_ = 2.0**-7 if one.dtype is torch.bfloat16 else 513 * 64 * 2.0**-24
        assert ((one - other).abs() <= step_ * other.abs()).all()


def test_other_strides_are_other_variants():
    def function(a, b):
        return torch.tanh(a) * b + 1

    compiled, transform = cached(function)
    a, b = (torch.randn(64, 64, device="cuda") for _ in range(2))
    layouts = [(a, b), (a.t(), b), (a, b.t()), (a[::1, :].t().contiguous(), b), (a[:, torch.randperm(64)], b)]
    for left, right in layouts * 2:
        assert torch.equal(compiled(left, right), thunder.jit(function)(left, right))
    assert transform.stats().compiles == 3
    assert transform.stats().regions == 1


def test_litgpt_llama():
    litgpt = pytest.importorskip("litgpt")
    config = litgpt.Config.from_name(
        "Llama-2-7b-hf", n_layer=3, n_embd=128, n_head=4, intermediate_size=256, padded_vocab_size=512, block_size=64
    )
    with torch.device("cuda"):
        model = litgpt.GPT(config).to(torch.bfloat16)
    tokens = torch.randint(0, 512, (2, 64), device="cuda")
    compiled, transform = cached(model)
    assert are_same(step(compiled, model, tokens), step(thunder.jit(model), model, tokens))
    stats = transform.stats()
    assert stats.regions == len(find_all_fused(compiled))
    assert stats.templates < stats.regions
    assert not stats.bypasses


def test_the_fusioncache_executor_with_nvfuser_as_its_compiler():
    function = lambda x: torch.tanh(x).sum() * 2  # noqa: E731
    transform = fusioncache.FusionCache(cache=fusioncache.Cache())
    compiled = thunder.jit(function, executors=["fusioncache"], transforms=[transform])
    x = torch.randn(64, 64, device="cuda")
    torch.testing.assert_close(compiled(x), function(x))
    assert len(find_fused(thunder.last_traces(compiled)[-1])) == transform.stats().regions == 1
    assert not transform.stats().bypasses


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_one_cache_serves_two_gpus():
    cache = fusioncache.Cache()
    results, transforms = [], []
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        torch.manual_seed(0)
        model = Blocks(2, 64).to(device)
        x = torch.linspace(-1, 1, 32 * 64).reshape(32, 64).to(device)
        transforms.append(fusioncache.FusionCache(cache=cache))
        result = step(thunder.jit(model, transforms=transforms[-1:]), model, x)
        assert are_same(result, step(thunder.jit(model), model, x))
        assert {tensor.device for tensor in result} == {torch.device(device)}
        results.append([tensor.cpu() for tensor in result])
    assert are_same(results[0], results[1])
    assert transforms[1].stats().misses == transforms[1].stats().compiles == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("backend", ["nvfuser", "inductor", "eager"])
def test_what_a_region_makes_itself_is_made_on_each_gpu(backend):
    cache = fusioncache.Cache()
    for number, device in enumerate(("cuda:1", "cuda:0", "cuda:1")):
        x = torch.linspace(-1, 1, 12, device=device).reshape(3, 4)
        transform = fusioncache.FusionCache(cache=cache, backend=backend)
        options = {"executors": fusioncache.executors(), "transforms": [transform]}
        compiled = thunder.jit(lambda x: torch.tanh(x) + torch.full((3, 4), 2.0, device=x.device) * x, **options)
        result = compiled(x)
        assert result.device == x.device
        torch.testing.assert_close(result, torch.tanh(x) + 2 * x)
        assert not transform.stats().bypasses
        assert transform.stats().misses == (number == 0)
