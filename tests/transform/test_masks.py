"""Masks that are prepared once for all attentions of a program, with torch's kernel for a GPU played on a CPU."""

import pytest
import thunder
import torch
from thunder.executors import sdpaex, torchex
from torch.utils._python_dispatch import TorchDispatchMode

from fusioncache.accelerators.steps import tokens
from fusioncache.accelerators.steps.lean_steps import simplify
from fusioncache.accelerators.steps.tokens import MASKS
from fusioncache.transform.rewrite import derive

HEADS, KEYS, SIZE = 2, 5, 8


def play_kernel(query, key, value, bias, saves, dropout=0.0, causal=False, *, scale=None):
    """What the kernel computes; the mask's strides are among what it returns, as it could go by them."""
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, bias, scale=scale)
    return found, torch.tensor(bias.stride()), torch.tensor(saves), torch.zeros((), dtype=torch.int64)


@pytest.fixture(autouse=True)
def _kernel():
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_efficient_attention", play_kernel, "CPU")
    yield
    library._destroy()


def attend(query, key, mask, scale=0.5):
    return sdpaex.sdpea_gradfwd(query, key, key, mask, 0.0, False, scale=scale)


def select(masks, position):
    return torchex.index_select(masks, 2, position)


def two_layers(x, cache, masks, position):
    mask = select(masks, position)
    first = attend(x, cache, mask)
    rest = torchex.copy_(torchex.mul(cache, 2.0), cache, grad_enabled=False)
    second = attend(torchex.add(first[0], x), rest, mask)
    return *first, *second


def make_inputs(queries=1):
    torch.manual_seed(0)
    x, cache = (torch.randn(1, HEADS, rows, SIZE, dtype=torch.bfloat16) for rows in (queries, KEYS))
    masks = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()[None, None]
    return x, cache, masks, torch.arange(3 - queries, 3)


def trace_of(compute, queries=1):
    trace = thunder.trace(inline_trace=False, rename_proxies=False)(compute, *make_inputs(queries))
    return derive(trace, trace.bound_symbols, "Made by a test", 0.0)


def run(trace):
    inputs = make_inputs()
    return *trace.python_callable()(*inputs), inputs[1]


class Fills(TorchDispatchMode):
    """Counts what makes numbers of a mask's bits."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "masked_fill" in str(function)
        return function(*args, **(kwargs or {}))


def test_a_mask_is_prepared_once_and_the_kernel_is_given_the_same():
    trace = trace_of(two_layers)
    leaner = simplify(trace)
    lean = derive(trace, leaner.symbols, "Without", 0.0)
    assert leaner.taken == {MASKS: 1}
    text = str(lean)
    assert (text.count("= prepare_mask("), text.count("= attend_with_mask(")) == (1, 2)
    counts, results = [], []
    for each in (trace, lean):
        with Fills() as fills:
            results.append(run(each))
        counts.append(fills.count)
    assert counts == [2, 1]
    assert all(map(torch.equal, *results))


def one_layer(x, cache, masks, position):
    return attend(x, cache, select(masks, position))


def of_a_view(x, cache, masks, position):
    mask = torchex.unsqueeze(torchex.unsqueeze(torchex.reshape(select(masks, position), (KEYS,)), 0), 0)
    mask = torchex.reshape(mask, (1, 1, 1, KEYS))
    return *attend(x, cache, mask), *attend(x, cache, mask)


def that_is_written(x, cache, masks, position):
    mask = select(masks, position)
    first = attend(x, cache, mask)
    other = torchex.index_select(masks, 2, torchex.add(position, 1))
    torchex.copy_(other, torchex.reshape(mask, (1, 1, 1, KEYS)), grad_enabled=False)
    return *first, *attend(x, cache, mask)


def of_numbers(x, cache, masks, position):
    mask = torchex.index_select(torchex.to(masks, dtype=torch.bfloat16), 2, position)
    return *attend(x, cache, mask), *attend(x, cache, mask)


LEFT = {one_layer: 1, of_a_view: 1, that_is_written: 1, of_numbers: 1, two_layers: 3}


@pytest.mark.parametrize("compute", LEFT, ids=lambda each: each.__name__)
def test_what_has_to_stay_stays(compute):
    """Of several rows of queries a prepared mask would be large, and live long."""
    assert MASKS not in simplify(trace_of(compute, LEFT[compute])).taken


def test_where_thunder_has_another_function_nothing_is_done(monkeypatch):
    monkeypatch.setattr(tokens, "is_known_whole", lambda capability: False)
    assert MASKS not in simplify(trace_of(two_layers)).taken
