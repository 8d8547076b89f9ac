"""A definition has nvFuser's kernels for smaller and larger sizes before anybody asks for these, on a GPU."""

import pytest
import thunder
import torch
from gpu_artifacts import are_same

import fusioncache
from fusioncache.backends.nvfuser import backend
from fusioncache.backends.nvfuser import general as other_sizes

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("general_at_once")]

FIRST, LATER = (31, 38), (11, 2, 5, 70)


def function(x, y):
    return torch.nn.functional.silu(x) * y


def inputs(rows):
    return [torch.randn(rows, 1376, device="cuda", dtype=torch.bfloat16) for _ in range(2)]


def compiled_for_any_rows():
    compiled = thunder.jit(function, transforms=[fusioncache.FusionCache(cache=fusioncache.Cache())])
    for rows in FIRST:
        compiled(*inputs(rows))
    return compiled


def test_sizes_that_come_later_need_no_other_kernel(monkeypatch):
    made, execute = [], backend.execute_definition
    monkeypatch.setattr(backend, "execute_definition", lambda one, *args: made.append(one) or execute(one, *args))
    compiled_for_any_rows()
    [definition] = made
    assert all(definition.fec.is_compiled(inputs(rows)) for rows in LATER)


def test_they_have_the_bits_of_their_own_kernels(monkeypatch):
    compiled = compiled_for_any_rows()
    monkeypatch.setattr(other_sizes, "list_values", lambda general, values: ())
    fresh = compiled_for_any_rows()
    for rows in LATER:
        given = inputs(rows)
        assert are_same([compiled(*given)], [fresh(*given)]), rows


def test_what_torch_gives_at_random_stays_the_same():
    torch.manual_seed(2362)
    before = torch.cuda.get_rng_state()
    made = inputs(3)
    torch.cuda.set_rng_state(before)
    compiled = thunder.jit(function, transforms=[fusioncache.FusionCache(cache=fusioncache.Cache())])
    for rows in FIRST:
        compiled(*[torch.ones(rows, 1376, device="cuda", dtype=torch.bfloat16) for _ in range(2)])
    assert are_same(inputs(3), made)


def widen(x, table):
    """A table's rows for each of two, of which the region sees no length but in numbers."""
    length = x.shape[0]
    places = torch.arange(length, device="cuda")
    return places[:, None] >= places, table[:length].expand(2, length, 8), x @ table[:8]


def test_a_part_of_a_table_stays_expanded():
    table = torch.randn(64, 8, device="cuda")
    compiled = thunder.jit(widen, transforms=[fusioncache.FusionCache(cache=fusioncache.Cache())])
    for rows in (16, 24, 40, 20):
        x = torch.randn(rows, 8, device="cuda")
        found, plain = compiled(x, table), thunder.jit(widen)(x, table)
        assert [one.shape for one in found] == [one.shape for one in plain]
        assert [one.stride() for one in found] == [one.stride() for one in plain]
        assert are_same(found, plain)
