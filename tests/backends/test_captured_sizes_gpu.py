"""nvFuser's code for any sizes is never captured: nvFuser unloads a kernel when it compiles it for a larger block."""

import time

import pytest
import thunder
import torch
from gpu_artifacts import are_same
from thunder.transforms.cudagraph import CUDAGraphTransform

import fusioncache
from benchmarks.zoo.token_models import VOCABULARY, EncoderDecoder
from fusioncache.cache.backend_executables import WAITING

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("general_at_once")]

FIRST, CAPTURED, LARGER = (64, 96), 65, (200, 400)
"""Lengths: those that general code is made of, one that is captured, and some for which nvFuser compiles again."""


def make_model():
    torch.manual_seed(1)
    return EncoderDecoder(layers=2).cuda().to(torch.bfloat16)


def compile_model(model, *others, **options):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), **options)
    return thunder.jit(model, transforms=[transform, *others]), transform


def make_tokens(length, seed=0):
    return torch.randint(0, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(seed)).cuda()


def test_a_length_comes_again_behind_larger_ones():
    model = make_model()
    compiled, transform = compile_model(model)
    expected = {}
    for length in (*FIRST, *[CAPTURED] * 10, *LARGER, CAPTURED, *FIRST, *LARGER):
        model.zero_grad()
        out = compiled(make_tokens(length))
        out.float().square().sum().backward()
        torch.cuda.synchronize()
        found = [out.detach(), model.relative.weight.grad]
        assert are_same(found, expected.setdefault(length, found))
    assert transform.stats().generalizations and not transform.stats().bypasses


def test_a_graph_of_the_users_outlives_what_nvfuser_compiles_later():
    compiled, transform = compile_model(make_model())
    with torch.no_grad():
        for length in (*FIRST, *[CAPTURED] * 3):
            compiled(make_tokens(length))
        tokens, graph = make_tokens(CAPTURED), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = compiled(tokens)
        for length in (*LARGER, *FIRST):
            compiled(make_tokens(length))
        for seed in range(3):
            tokens.copy_(make_tokens(CAPTURED, seed))
            graph.replay()
            torch.cuda.synchronize()
            torch.testing.assert_close(result, compiled(tokens), rtol=2e-2, atol=2e-2)
    assert transform.stats().generalizations and not transform.stats().bypasses


def test_graphs_of_thunders_outlive_what_nvfuser_compiles_later():
    # With gradients Thunder's transform captures no second length of one model.
    captured, transform = compile_model(make_model().requires_grad_(False), CUDAGraphTransform())
    plain, _ = compile_model(make_model().requires_grad_(False))
    with torch.no_grad():
        for length in (*FIRST, CAPTURED, *LARGER, CAPTURED, *FIRST):
            tokens = make_tokens(length, seed=length)
            torch.testing.assert_close(captured(tokens), plain(tokens), rtol=2e-2, atol=2e-2)
            torch.cuda.synchronize()
    assert transform.stats().generalizations


def test_graphs_at_each_length_have_code_of_that_size():
    model = make_model()
    compiled, transform = compile_model(model, graphs=True)
    expected = {}
    for length in (*FIRST, *[CAPTURED] * 5, *LARGER, *[CAPTURED, *FIRST, *LARGER] * 3):
        model.zero_grad()
        out = compiled(make_tokens(length))
        out.float().square().sum().backward()
        torch.cuda.synchronize()
        expected.setdefault(length, []).append(out.detach().clone())
    for outs in expected.values():
        torch.testing.assert_close(outs[0], outs[-1], rtol=2e-2, atol=2e-2)
        assert are_same([outs[-1]], [outs[-2]])
    stats = transform.stats()
    assert stats.captures >= 2 * len(expected) and stats.reused_sizes > 0
    assert set(stats.not_captured) <= {WAITING}


def test_a_length_gets_code_of_its_own_from_the_pool(tmp_path):
    def call(times, jobs):
        cache = fusioncache.Cache(record=False, store=tmp_path / "store")
        transform = fusioncache.FusionCache(cache=cache, jobs=jobs, programs=False)
        compiled = thunder.jit(make_model(), transforms=[transform])
        with torch.no_grad():
            for length in FIRST:
                compiled(make_tokens(length))
            for _ in range(times):
                result = compiled(make_tokens(CAPTURED))
                if transform.stats().reused_sizes:
                    break
                time.sleep(0.02)
            results = [compiled(make_tokens(CAPTURED)) for _ in range(40)]
        assert are_same([results[-1]], [results[-2]])
        torch.testing.assert_close(results[-1], result, rtol=2e-2, atol=2e-2)
        return transform.stats(), results[-1]

    first, result = call(3000, jobs=2)
    assert first.reused_sizes > 0 and not first.bypasses
    later, again = call(1, jobs=0)
    assert later.loads > 0 and are_same([result], [again])
