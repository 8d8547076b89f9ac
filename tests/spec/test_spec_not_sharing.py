"""Regions that compute something else, or on other values, never share a template."""

import pytest
import thunder
import torch

import fusioncache


def tanh_of_product(a, b):
    return torch.tanh(a * b)


def count_templates(*calls):
    """Returns the number of templates of calls that share one cache, each a function with its arguments."""
    cache = fusioncache.Cache()
    for function, args in calls:
        transform = fusioncache.FusionCache(backend="eager", cache=cache, sizes="static")
        thunder.jit(function, executors=fusioncache.executors(), transforms=[transform])(*args)
    return cache.stats().templates


def matrices(*shape, dtype=torch.float32):
    return torch.ones(shape or (2, 3), dtype=dtype), torch.ones(shape or (2, 3), dtype=dtype)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tanh_of_product, lambda a, b: torch.sin(a * b)),
        (tanh_of_product, lambda a, b: torch.tanh(a + b)),
        (lambda a, b: torch.tanh(a * 2.0) * b, lambda a, b: torch.tanh(a * 3.0) * b),
        (lambda a, b: torch.tanh(a / b) + a, lambda a, b: torch.tanh(b / a) + a),
        (lambda a, b: torch.tanh(a * a) + b, lambda a, b: torch.tanh(a * b) + b),
    ],
    ids=["operation", "operand's operation", "constant", "order of operands", "one value or two"],
)
def test_another_computation_is_another_template(one, other):
    assert count_templates((one, matrices()), (one, matrices())) == 1
    assert count_templates((one, matrices()), (other, matrices())) == 2


@pytest.mark.parametrize(
    "others",
    [matrices(dtype=torch.float64), matrices(dtype=torch.bfloat16), matrices(2, 4), matrices(2, 3, 1), matrices(6)],
    ids=["float64", "bfloat16", "size", "rank", "shape"],
)
def test_other_values_are_another_template(others):
    assert count_templates((tanh_of_product, matrices()), (tanh_of_product, matrices())) == 1
    assert count_templates((tanh_of_product, matrices()), (tanh_of_product, others)) == 2


def test_another_layout_in_memory_is_another_executable_of_the_same_template():
    cache = fusioncache.Cache()
    transform = fusioncache.FusionCache(backend="inductor", cache=cache, jobs=0)
    compiled = thunder.jit(tanh_of_product, executors=fusioncache.executors(), transforms=[transform])
    by_rows, by_columns = torch.randn(4, 4), torch.randn(4, 4).t()
    for args in ((by_rows, by_rows), (by_columns, by_columns), (by_rows, by_rows)):
        assert torch.allclose(compiled(*args), tanh_of_product(*args))
    assert transform.stats().templates == 1
    assert transform.stats().compiles == 2


def test_a_setting_of_torch_that_changes_bits_is_part_of_the_key():
    cache, before = fusioncache.Cache(), torch.are_deterministic_algorithms_enabled()
    try:
        for setting in (False, True):
            torch.use_deterministic_algorithms(setting)
            transform = fusioncache.FusionCache(backend="eager", cache=cache)
            thunder.jit(tanh_of_product, executors=fusioncache.executors(), transforms=[transform])(*matrices())
    finally:
        torch.use_deterministic_algorithms(before)
    assert cache.stats().templates == 2
