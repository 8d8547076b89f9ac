"""Code for one size that is derived from nvFuser's general code is captured like code compiled for that size."""

import pytest
import thunder
import torch
from gpu_artifacts import are_same

import fusioncache
from benchmarks.zoo.token_models import VOCABULARY, EncoderDecoder

pytestmark = pytest.mark.gpu

LENGTHS = (64, 96, 65, 200, 400)
"""Two lengths to generalize from, a similar one, and some for which nvFuser compiles other kernels."""


@pytest.mark.parametrize("graphs", [False, True])
def test_each_length_has_the_same_bits_each_time_and_is_captured(graphs):
    torch.manual_seed(1)
    model = EncoderDecoder(layers=2).cuda().to(torch.bfloat16)
    tokens = {length: torch.randint(0, VOCABULARY, (2, length)).cuda() for length in LENGTHS}
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), graphs=graphs)
    compiled = thunder.jit(model, transforms=[transform])
    found, compiles, captures = {}, {}, []
    for _ in range(3):
        for length in LENGTHS:
            model.zero_grad()
            out = compiled(tokens[length])
            out.float().square().sum().backward()
            torch.cuda.synchronize()
            gradients = [] if graphs else [model.relative.weight.grad]
            found.setdefault(length, []).append([out.detach().clone(), *gradients])
            compiles.setdefault(length, transform.stats().compiles)
        captures.append(transform.stats().captures)
    assert all(are_same(each, first) for first, *others in found.values() for each in others)
    assert captures == [0, 0, graphs * 2 * len(LENGTHS)]  # as for a length that is compiled alone
    stats = transform.stats()
    assert stats.generalizations > 0 and stats.general_hits > 0 and not stats.bypasses and not stats.not_captured
    assert stats.compiles - compiles[LENGTHS[1]] <= sum(stats.own_sizes.values())
