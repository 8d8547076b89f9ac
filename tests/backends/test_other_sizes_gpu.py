"""nvFuser's code for any sizes on a GPU: at each size it has the bits of code for that size, without a compile."""

from unittest import mock

import pytest
import thunder
import torch
from gpu_artifacts import are_same, capture

import fusioncache

pytestmark = pytest.mark.gpu

FIRST, LATER = (31, 38), (11, 2, 5, 70)


def multiply(x, y):
    return torch.nn.functional.silu(x) * y


def use_numbers(x, y):
    rows = x.shape[0]
    return x * (1 / rows) + y / (rows + 0.5), torch.exp(x - 0.1 * rows)


def change_shapes(x, y):
    z = torch.tanh(x * y) * 0.3 + x
    return torch.nn.functional.pad(z, (0, 0, 0, 256 - x.shape[0])), z.reshape(-1, 16) * 2


def locate(x, y):
    places, rows = (y * 8).long(), x.shape[0]
    return places * rows, 3 * rows - places, x * 2


def inputs(rows, dtype=torch.bfloat16):
    return [torch.randn(rows, 1376, device="cuda", dtype=dtype) for _ in range(2)]


def compile_function(function=multiply, store=False, **options):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=store), **options)
    return thunder.jit(function, transforms=[transform]), transform


def counts(transform):
    stats = transform.stats()
    return stats.compiles, stats.loads, stats.generalizations, stats.general_hits, dict(stats.own_sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [multiply, use_numbers, change_shapes, locate])
def test_each_size_has_its_bits_wherever_its_arguments_lie_and_in_a_graph_of_the_users(function, dtype):
    def call(compiled, arguments):
        return [*results] if isinstance(results := compiled(*arguments), tuple) else [results]

    (compiled, transform), (static, _) = compile_function(function), compile_function(function, sizes="static")
    replays = []
    for rows in (*FIRST, *LATER):
        given, memory = inputs(rows, dtype), inputs(rows + 1, dtype)
        off = [each.flatten()[1:][: one.numel()].view_as(one) for each, one in zip(memory, given, strict=True)]
        torch._foreach_copy_(off, given)
        assert all(are_same(call(compiled, each), call(static, each)) for each in (given, off, given)), rows
        replays.append((given, *capture(call, compiled, given)))
    for given, graph, results in replays:
        torch._foreach_zero_(results)
        graph.replay()
        assert are_same(results, call(static, given))
    compiles, _, generalizations, hits, alone = counts(transform)
    assert compiles == 2 * generalizations > 0 and hits == len(LATER) * generalizations and not alone


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_later_process_loads_each_size(tmp_path, jobs):
    cases, results = [inputs(rows) for rows in (*FIRST, *LATER)], []
    for order, workers, expected in ((1, jobs, [1, len(LATER), {}]), (-1, 0, [0, len(cases) - 1, {}])):
        compiled, transform = compile_function(store=tmp_path, jobs=workers)
        results.append([compiled(*each) for each in cases[::order]][::order])
        compiles, loads, *others = counts(transform)
        assert others == expected and bool(transform.stats().helped) == bool(workers)
    assert (compiles, loads) == (0, len(cases))
    assert are_same(*results)


@pytest.mark.parametrize("keeps", [False, True])
def test_where_no_code_is_made_for_a_size_it_is_compiled_alone(keeps, tmp_path, monkeypatch):
    fail = mock.Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr("fusioncache.backends.nvfuser.general.define_general", fail)
    function = (lambda x, y: torch.tanh(x) * y) if keeps else (lambda x, y: torch.tanh(x) + y)
    compiled, transform = compile_function(function, keeps and tmp_path)
    static, _ = compile_function(function, sizes="static")
    for given in map(inputs, FIRST + LATER):
        assert are_same([compiled(*given)], [static(*given)])
    others = len(FIRST + LATER) - 1
    assert counts(transform) == (others + 1, 0, 0, 0, {"compile failed: ZeroDivisionError": others})
    assert fail.call_count == 1


def widen(x, table):
    """A table's rows for each of two, of which the region sees no length but in numbers."""
    length = x.shape[0]
    places = torch.arange(length, device="cuda")
    return places[:, None] >= places, table[:length].expand(2, length, 8), x @ table[:8]


def test_a_part_of_a_table_stays_expanded(tmp_path):
    table = torch.randn(64, 8, device="cuda")
    for loads in (False, True):
        compiled, transform = compile_function(widen, tmp_path)
        for rows in (16, 24, 40, 20):
            x = torch.randn(rows, 8, device="cuda")
            found, plain = compiled(x, table), thunder.jit(widen)(x, table)
            assert [one.shape for one in found] == [one.shape for one in plain]
            assert [one.stride() for one in found] == [one.stride() for one in plain]
            assert are_same(found, plain)
        assert bool(transform.stats().loads) == loads and not transform.stats().bypasses
