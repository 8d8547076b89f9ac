"""From the third sequence length on, a model is neither traced nor compiled again."""

import thunder
import torch

import fusioncache


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


def compile_model(model, **options):
    transform = fusioncache.FusionCache(backend="eager", **options)
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), transform


def test_two_lengths_are_traced_and_all_later_ones_are_not(tmp_path):
    model = torch.nn.Sequential(Layer(), Layer())
    compiled, transform = compile_model(model, cache=fusioncache.Cache(store=tmp_path))
    plain = thunder.jit(model)
    known = []
    for length in (3, 5, 7, 11, 64):
        x = torch.randn(2, length, 8)
        assert torch.equal(compiled(x), plain(x))
        known.append((thunder.cache_misses(compiled), transform.stats().compiles))
    traces, compiles = zip(*known, strict=True)
    assert traces == (1, 2, 2, 2, 2)
    assert compiles[1] == compiles[2] == compiles[3] == compiles[4]
    assert transform.stats().programs_filled == 3


def test_a_later_process_traces_no_length_at_all(tmp_path):
    model = torch.nn.Sequential(Layer(), Layer())
    for traced in (2, 0):
        compiled, _ = compile_model(model, cache=fusioncache.Cache(store=tmp_path))
        for length in (3, 5, 7):
            compiled(torch.randn(2, length, 8))
        assert thunder.cache_misses(compiled) == traced


def test_a_model_that_asks_for_its_length_is_traced_at_each_answer(tmp_path):
    def double_long_rows(x):
        return torch.tanh(x * 2.0) if x.shape[1] > 6 else torch.tanh(x)

    compiled, _ = compile_model(double_long_rows, cache=fusioncache.Cache(store=tmp_path))
    for length in (3, 5, 6, 7, 9, 12):
        x = torch.randn(2, length)
        assert torch.equal(compiled(x), double_long_rows(x))


def test_with_static_sizes_each_length_is_compiled():
    compiled, transform = compile_model(torch.tanh, cache=fusioncache.Cache(), sizes="static")
    for count, length in enumerate((3, 5, 7), start=1):
        compiled(torch.randn(2, length))
        assert transform.stats().compiles == count
