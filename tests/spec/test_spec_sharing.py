"""Equal regions share one compiled template: compile time does not grow with the depth of a model."""

import pytest
import thunder
import torch

import fusioncache


def compile_model(model, cache=None):
    transform = fusioncache.FusionCache(backend="eager", cache=cache or fusioncache.Cache())
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), transform


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.linear(x))


def train(depth, cache=None):
    compiled, transform = compile_model(torch.nn.Sequential(*[Block() for _ in range(depth)]), cache)
    compiled(torch.randn(3, 8)).sum().backward()
    return transform.stats()


def test_a_deeper_model_has_more_regions_and_as_many_compiles():
    shallow, deep = train(4), train(8)
    assert deep.regions > shallow.regions
    assert deep.templates == shallow.templates
    assert deep.compiles == shallow.compiles == deep.templates


def test_a_second_model_with_the_same_cache_compiles_nothing():
    cache = fusioncache.Cache()
    assert train(4, cache).compiles > 0
    assert train(4, cache).compiles == 0


def count_compiles(*functions):
    """Returns the number of compiles of these functions of two matrices, which share one cache."""
    cache = fusioncache.Cache()
    for function in functions:
        compile_model(function, cache)[0](torch.randn(2, 3), torch.randn(2, 3))
    return cache.stats().compiles


def test_names_of_variables_do_not_matter():
    def first(a, b):
        product = a * b
        return torch.tanh(product)

    def second(u, v):
        other = u * v
        return torch.tanh(other)

    assert count_compiles(first, second) == 1


def test_the_order_of_independent_statements_does_not_matter():
    def first(a, b):
        x, y = torch.sin(a), torch.cos(b)
        return x * y

    def second(a, b):
        y = torch.cos(b)
        x = torch.sin(a)
        return x * y

    assert count_compiles(first, second) == 1


@pytest.mark.parametrize("terms", [4, 8])
def test_sums_of_many_terms_share_what_adds_them(terms):
    """A residual stream that is computed again in each layer is a sum with one more term for each layer."""

    def add(*args):
        total = args[0]
        for arg in args[1:]:
            total = total + arg
        return torch.tanh(total)

    cache = fusioncache.Cache()
    compiled, transform = compile_model(add, cache)
    for count in range(2, 2 + terms):
        compiled(*[torch.randn(2, 3) for _ in range(count)])
    assert transform.stats().regions == terms
    assert transform.stats().templates == 1
