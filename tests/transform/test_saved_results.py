"""A result of attention is saved once for backward, as the product's operand; emulated attention makes no copy."""

import pytest
import thunder
import torch
from attention_layers import count_saved, turn
from flash_kernels import emulate_flash_attention
from stored_programs import compile_anew, without_interpreter
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_leaves

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.steps.views import RESULTS

SIZE, HEADS = 8, 2
WIDTH = HEADS * SIZE


def turned(layer, x):
    parts = (layer.project(x) * 0.5).view(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    return turn(parts[0], SIZE // 2), turn(parts[1], SIZE // 2), parts[2]


def turned_and_scaled(layer, x):
    """The gradient of a number for each of a query's elements is a sum of the query's gradients."""
    query, key, value = turned(layer, x)
    return query * layer.scale, key, value


def rows_later(layer, x):
    """Positions come before rows, as in models that have their sequences first, until attention."""
    parts = layer.project(x.transpose(0, 1)).view(x.shape[1], x.shape[0], 3, HEADS, SIZE).permute(2, 1, 3, 0, 4)
    return parts[0] * 1.1, parts[1] * 1.2, parts[2]


def join_heads(result):
    return result.transpose(1, 2).flatten(2)


def join(layer, result):
    return layer.join(join_heads(result))


def return_joined(layer, result):
    """Returns what was a copy of the result as well: the caller may write into it."""
    joined = join_heads(result)
    return layer.join(joined), joined


def split_heads(layer, result):
    result = result.transpose(1, 2)
    return result.reshape(*result.shape[:2], HEADS, 2, SIZE // 2) @ layer.join.weight[: SIZE // 2, : SIZE // 2]


class Layer(torch.nn.Module):
    def __init__(self, heads_of=turned, finish=join, *, bias=False, frozen=False, writes=False):
        super().__init__()
        torch.manual_seed(0)
        self.heads_of, self.finish, self.writes = heads_of, finish, writes
        self.project, self.join = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=bias)
        self.join.weight.requires_grad_(not frozen)
        if heads_of is turned_and_scaled:
            self.scale = torch.nn.Parameter(torch.rand(SIZE))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.writes:
            self.calls.add_(1.0)
        return self.finish(self, scaled_dot_product_attention(*self.heads_of(self, x), is_causal=True))


ONCE = {
    "a layer": {},
    "scaled": {"heads_of": turned_and_scaled},
    "what is multiplied is not saved for a weight's gradient": {"frozen": True},
    "rows later": {"heads_of": rows_later, "bias": True},
}
TWICE = {
    "the result is returned": {"finish": lambda layer, result: (join(layer, result), result)},
    "what is multiplied is returned": {"finish": return_joined},
    "what is multiplied is returned, and not saved": {"frozen": True, "finish": return_joined},
    "what is multiplied is read": {"finish": lambda layer, result: join(layer, result) + join_heads(result).sin()},
    "heads stay apart": {"finish": lambda layer, result: result @ layer.join.weight[:SIZE, :SIZE]},
    "heads are split": {"finish": split_heads},
    "dimensions of heads are swapped": {
        "finish": lambda layer, result: result.permute(0, 2, 3, 1).flatten(2) @ layer.join.weight
    },
    "something is written in place": {"writes": True},
}
"""Layers whose results are saved as before: each differs in one thing."""


@pytest.fixture(autouse=True)
def kernels(eager_regions):
    """Yields the emulated kernels. Thunder alone must compute the same bits."""
    with pytest.MonkeyPatch.context() as patch, emulate_flash_attention(patch) as kernels:
        yield kernels


def call_once(call, length=6):
    """Returns outputs, the sum of their squares, and an input that is no leaf, with the layout that a program makes."""
    torch.manual_seed(length)
    x = torch.randn(2, length, WIDTH, requires_grad=True).sin()
    outputs = tree_leaves(call(x))
    return outputs, sum(each.square().sum() for each in outputs), x


def take_step(call, model, length=6):
    outputs, total, x = call_once(call, length)
    return [*outputs, *torch.autograd.grad(total, [x, *(each for each in model.parameters() if each.requires_grad)])]


def compile_both(model, directory):
    return [compile_anew(model, directory / lean, lean=lean) for lean in ("auto", "thunder")]


@pytest.mark.parametrize("case", [*ONCE, *TWICE])
def test_results_and_gradients_have_the_same_bits_and_strides(tmp_path, kernels, case):
    model = Layer(**{**ONCE, **TWICE}[case])
    (compiled, transform), (plain, _) = compile_both(model, tmp_path)
    found, copies = take_step(compiled, model), kernels.copies
    expected = take_step(plain, model)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    torch.testing.assert_close(found, take_step(model, model))
    assert transform.stats().taken_out.get(RESULTS, 0) == (case in ONCE)
    assert not transform.stats().bypasses
    if case in ONCE and case != "rows later":
        assert (copies, kernels.copies) == (0, 1)
    is_one_less = count_saved(plain) - count_saved(compiled) == 1
    assert is_one_less is (case in ONCE and model.join.weight.requires_grad)


@pytest.mark.parametrize(
    "options",
    [{"finish": return_joined}, {"finish": return_joined, "frozen": True}, {}],
    ids=["joined", "joined and frozen", "plain"],
)
def test_what_is_written_between_forward_and_backward_is_noticed_as_before(tmp_path, options):
    both = compile_both(Layer(**options), tmp_path)
    for access in (torch.Tensor.detach, lambda output: output.data):
        found = []
        for compiled, _ in both:
            outputs, total, x = call_once(compiled)
            access(outputs[-1]).mul_(2.0)
            try:
                found.append(torch.autograd.grad(total, x)[0].tolist())
            except RuntimeError as error:
                found.append(str(error)[:60])
        assert found[0] == found[1]


def test_lengths_are_filled_in_and_a_later_process_loads_the_same(tmp_path, kernels, monkeypatch):
    monkeypatch.setattr(Definitions, "refuse_foreign", lambda self: None)  # the emulation is foreign code
    model = Layer()
    compiled, transform = compile_anew(model, tmp_path)
    for length in (6, 8, 10, 12):
        torch.testing.assert_close(take_step(compiled, model, length), take_step(model, model, length))
    assert (thunder.cache_misses(compiled), transform.stats().programs_filled) == (2, 2)
    later, transform = compile_anew(model, tmp_path)
    with without_interpreter():
        found = take_step(later, model)
    assert all(map(torch.equal, found, take_step(compiled, model)))
    assert transform.stats().programs_loaded == 1 and not kernels.copies


def test_thunders_transform_for_graphs_captures_what_is_saved_once(tmp_path, monkeypatch):
    """It expects the saved tensors at a fixed place. Here its parts run without captures."""
    from thunder.transforms.cudagraph import CUDAGraphRunner, CUDAGraphTransform

    monkeypatch.setattr(
        CUDAGraphRunner, "call_cuda_graph", lambda runner, name, *args: runner.python_callables[name][0](*args)
    )
    model = Layer()
    compiled, transform = compile_anew(model, tmp_path, jit={"transforms": [CUDAGraphTransform()]}, programs=False)
    found = take_step(compiled, model)
    assert transform.stats().taken_out[RESULTS] == 1
    assert "CUDAGraph" in str(thunder.last_backward_traces(compiled)[-1])
    expected = take_step(compile_anew(model, tmp_path, lean="thunder")[0], model)
    assert all(map(torch.equal, found, expected))
