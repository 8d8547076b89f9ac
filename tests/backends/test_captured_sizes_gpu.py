"""Code for one size that is made of nvFuser's code for any is captured as what is compiled for one size."""

import pytest
import thunder
import torch
from gpu_artifacts import are_same
from thunder.transforms.cudagraph import CUDAGraphTransform

import fusioncache
from benchmarks.zoo.token_models import VOCABULARY, EncoderDecoder

pytestmark = pytest.mark.gpu

LENGTHS = (64, 96, 65, 200, 400)
"""Those that general code is made of, one that is like them, and some for which nvFuser compiles other kernels."""


def make_model():
    torch.manual_seed(1)
    return EncoderDecoder(layers=2).cuda().to(torch.bfloat16)


def compile_model(model, *others, **options):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), **options)
    return thunder.jit(model, transforms=[transform, *others]), transform


def make_tokens(length, seed=0):
    return torch.randint(0, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(seed)).cuda()


def test_graphs_of_thunders_outlive_later_lengths():
    captured, transform = compile_model(make_model().requires_grad_(False), CUDAGraphTransform())
    plain, _ = compile_model(make_model().requires_grad_(False), sizes="static")
    with torch.no_grad():
        for length in (*LENGTHS, *LENGTHS):
            tokens = make_tokens(length, seed=length)
            torch.testing.assert_close(captured(tokens), plain(tokens), rtol=2e-2, atol=2e-2)
    assert transform.stats().general_hits > 0


@pytest.mark.parametrize("graphs", [False, True])
def test_each_length_has_the_same_bits_each_time_and_is_captured(graphs):
    model = make_model()
    compiled, transform = compile_model(model, graphs=graphs)
    found, compiles, captures = {}, {}, []
    for _ in range(3):
        for length in LENGTHS:
            model.zero_grad()
            out = compiled(make_tokens(length))
            out.float().square().sum().backward()
            torch.cuda.synchronize()
            gradients = [] if graphs else [model.relative.weight.grad]
            found.setdefault(length, []).append([out.detach().clone(), *gradients])
            compiles.setdefault(length, transform.stats().compiles)
        captures.append(transform.stats().captures)
    assert all(are_same(each, first) for first, *others in found.values() for each in others)
    assert captures == [0, 0, graphs * 2 * len(LENGTHS)]  # as at a length that is compiled for itself
    stats = transform.stats()
    assert stats.generalizations > 0 and stats.general_hits > 0 and not stats.bypasses and not stats.not_captured
    assert stats.compiles - compiles[LENGTHS[1]] <= sum(stats.own_sizes.values())
