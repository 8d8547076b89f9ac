"""Residual streams in Thunder's own traces: carried or rebuilt, with every bit as it was."""

import functools

import pytest
import thunder
import torch
from models import Blocks, Residual, are_same, compile_plain, compile_with, find_all_fused, find_fused, recompute, step

from fusioncache.accelerators.residual.plans import ResidualPlan
from fusioncache.accelerators.residual.rebuild import VARIES
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor.backend import Inductor

pytestmark = pytest.mark.usefixtures("eager_regions")
CARRY, SEGMENTED = ResidualPlan.CARRY, ResidualPlan.SEGMENTED


def train(model, *inputs, **options):
    """The results of a step of a recomputed model, the transform, and the compiled model."""
    with recompute():
        compiled, transform = compile_with(model, **options)
        return step(compiled, model, *inputs), transform, compiled


def plans(transform) -> list[ResidualPlan]:
    return [choice.plan for choice in transform.choices()]


@functools.cache
def reference(model_type, layers: int, dtype=torch.float32) -> list[torch.Tensor]:
    """What a step of this recomputed model computes as Thunder has it: traced once for all tests."""
    model, x = made(model_type, layers, dtype)
    with recompute():
        return step(compile_plain(model), model, x)


def made(model_type, layers: int, dtype=torch.float32):
    """Returns a model with a stream, and its input. Backward may not save the input, so the stream starts behind it."""
    torch.manual_seed(0)
    shape = (5, 16) if model_type is Blocks else (10, 10)
    start = torch.nn.Linear(shape[1], shape[1], bias=False)
    return torch.nn.Sequential(start, model_type(layers)).to(dtype), torch.randn(shape).to(dtype)


class Two(torch.nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.one, self.other = Residual(layers), Residual(layers)

    def forward(self, x):
        return self.other(self.one.weights[0] @ self.one(x))


@pytest.mark.parametrize("wanted", [CARRY, SEGMENTED], ids=str)
@pytest.mark.parametrize(
    ("model_type", "layers", "dtype"),
    [(Residual, 5, torch.float32), (Blocks, 5, torch.bfloat16), (Two, 4, torch.bfloat16)],
    ids=str,
)
def test_every_bit_stays_as_it_was(model_type, layers, dtype, wanted):
    model, x = made(model_type, layers, dtype)
    result, transform, _ = train(model, x, residual=wanted.value)
    assert are_same(result, reference(model_type, layers, dtype))
    assert not transform.stats().bypasses
    if dtype is torch.bfloat16:  # in float32 Thunder saves what backward needs
        streams = 1 + (model_type is Two)
        assert len(plans(transform)) == 2 * streams and plans(transform)[streams:] == [wanted] * streams


@pytest.mark.parametrize("wanted", [CARRY, SEGMENTED])
def test_calls_do_not_grow_with_depth(wanted):
    def most(layers):
        model, x = made(Residual, layers, torch.bfloat16)
        _, transform, compiled = train(model, x, residual=wanted.value)
        backward = find_fused(thunder.last_backward_traces(compiled)[-1])
        assert plans(transform)[1:] == [wanted]
        return max(len(call.args) for call in backward), transform.stats().templates

    if wanted is CARRY:
        assert most(4) == most(6) == (4, 6)
    else:
        # A step takes a sum and a segment's terms, as many as the square root of the depth.
        assert [arguments for arguments, _ in map(most, (8, 18))] == [4, 6]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_streams_of_a_compiler_that_drops_roundings_are_carried_only_where_nothing_is_rounded(dtype, monkeypatch):
    monkeypatch.setattr(Inductor, "compile", Eager.compile)
    model, x = made(Residual, 4, dtype)
    result, transform, compiled = train(model, x, backend="inductor", residual="carry")
    assert are_same(result, reference(Residual, 4, dtype))
    assert plans(transform) == ([CARRY] if dtype is torch.float32 else [])
    assert transform.stats().bypasses == ({} if dtype is torch.float32 else {VARIES: 2})
    assert transform.stats().regions == len(find_all_fused(compiled))
