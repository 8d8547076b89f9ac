"""Grouped products under Thunder: the gradients of torch, for every form and layout, and experts that train."""

import copy
import itertools
from unittest import mock

import pytest
import thunder
import torch
from expert_layers import Experts, multiply_in_a_loop
from models import are_same, compile_with
from program_keys import assert_names, jit, key_of
from thunder.core import prims, transforms
from thunder.executors import torchex
from torch.nn import functional

import fusioncache

FORMS = {
    "rows": ((40, 16), (4, 16, 32), [8, 24, 32, 40]),
    "sums": ((16, 40), (40, 32), [8, 24, 32, 40]),
    "columns": ((4, 8, 16), (16, 40), [8, 24, 32, 40]),
    "batch": ((4, 8, 16), (4, 16, 32), []),
}
"""Shapes of two operands, and ends of groups. On a GPU torch needs multiples of eight: the process ends if groups of
other sizes, or empty ones, do not lie one after the other."""


def product(a, b, ends=None):
    return functional.grouped_mm(a, b, offs=ends)


def tensor_of(ends, device="cpu"):
    return torch.tensor(ends, dtype=torch.int32, device=device) if ends else None


def differentiate(function, a, b, *ends, grad=None):
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    result = function(a, b, *ends)
    return [result.detach(), *torch.autograd.grad(result, (a, b), torch.ones_like(result) if grad is None else grad)]


def in_columns(matrices):
    return matrices.mT.contiguous().mT


def assert_bits_of_torch(compiled, form, dtype, device="cpu"):
    """Asserts torch's results and layouts for each operand in rows and in columns, with one program for all."""
    *shapes, ends = FORMS[form]
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
    for left, right in itertools.product((a, in_columns(a)), (b, in_columns(b))):
        groups = () if form == "batch" else (tensor_of(ends, device),)
        grad = torch.randn_like(product(left, right, *groups))
        ours, own = (differentiate(function, left, right, *groups, grad=grad) for function in (compiled, product))
        assert are_same(ours, own)
        assert [each.stride() for each in ours] == [each.stride() for each in own]
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize(
    ("form", "dtype"), [*((form, torch.float32) for form in FORMS), ("rows", torch.bfloat16)], ids=str
)
def test_every_form_has_the_bits_of_torch_in_every_layout(form, dtype):
    assert_bits_of_torch(compile_with(product)[0], form, dtype)


def test_gradients_may_lie_in_any_way_and_other_groups_are_no_other_program():
    """Torch refuses the gradient of a sum, which is one expanded number, and rows of five numbers."""
    compiled, transform = compile_with(lambda a, b, ends: product(a * 2, b, ends).sum())
    a, b, compiles = torch.randn(20, 8), in_columns(torch.randn(3, 8, 5)), set()
    with pytest.raises(RuntimeError, match="strides"):
        differentiate(lambda *args: product(*args).sum(), a, b, tensor_of([4, 9, 20]))
    for ends in ([4, 9, 20], [5, 5, 20], [0, 20, 20]):  # some of the last groups are empty
        ours = differentiate(compiled, a, b, tensor_of(ends))
        own = differentiate(lambda a, b, ends: multiply_in_a_loop(a * 2, b, ends).sum(), a, b, ends)
        torch.testing.assert_close(ours, own)
        compiles.add(transform.stats().compiles)
    assert thunder.cache_misses(compiled) == len(compiles) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offs": torch.tensor([4, 20])}, "Failed to find an executor"),
        ({"bias": torch.zeros(8)}, "bias"),
        ({"out_dtype": torch.bfloat16}, "dtype"),
        ({"offs": tensor_of([1, 4, 20])}, "Group count"),
        ({"mat_a": torch.zeros(2, 4, 16)}, "no grouped product of"),
        ({"mat_a": torch.zeros(2, 4, 16), "offs": torch.tensor([4, 20])}, "int32"),
    ],
)
def test_what_torch_cannot_compute_is_refused(change, message):
    arguments = {"mat_a": torch.zeros(20, 16), "mat_b": torch.zeros(2, 16, 8), "offs": tensor_of([4, 20])} | change
    with pytest.raises(RuntimeError):
        functional.grouped_mm(**arguments)
    compiled, _ = compile_with(functional.grouped_mm)
    with pytest.raises(RuntimeError, match=message):
        compiled(**arguments)


def train_experts(backend="eager", device="cpu", dtype=torch.float32, **tolerances):
    """Trains experts, compares each step with torch's, and returns the counts."""
    torch.manual_seed(0)
    model = Experts().to(device, dtype)
    plain = copy.deepcopy(model)
    compiled, transform = compile_with(model, backend)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, plain)]
    compiles, counts = set(), set()
    for step in range(5):
        x = torch.randn(24, 16, generator=torch.Generator().manual_seed(step)).to(device, dtype)
        counts.add(tuple(plain.count_tokens(x)))
        ours, own = compiled(x), plain(x)
        for out, optimizer in zip((ours, own), optimizers, strict=True):
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
        torch.testing.assert_close([ours, *model.parameters()], [own, *plain.parameters()], **tolerances)
        compiles.add(transform.stats().compiles)
    assert len(counts) == 5
    assert thunder.cache_misses(compiled) == len(compiles) == 1
    return transform.stats()


def test_experts_train_while_the_routing_changes():
    assert not train_experts().bypasses


RULES = transforms._grad_fn_map


def test_the_rule_and_the_checker_are_in_the_key_of_a_program():
    jitted, x = jit(torch.sin), torch.zeros(3, 4)
    key = key_of(jitted, x)
    with mock.patch.dict(RULES):
        del RULES[prims._grouped_mm.id]
        assert_names("Thunder's `thunder.core.transforms`", key, key_of(jitted, x))
    with mock.patch.object(torchex.ex.implmap[prims._grouped_mm.id], "checker", None):
        assert_names("the option executors.torch.operations", key, key_of(jitted, x))


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_bits_of_torch_on_a_gpu(form):
    compiled = thunder.jit(product, executors=["torch"], transforms=[fusioncache.FusionCache()])
    assert_bits_of_torch(compiled, form, torch.bfloat16, "cuda")


@pytest.mark.gpu
def test_experts_train_on_a_gpu():
    assert not train_experts("auto", "cuda", torch.bfloat16, atol=3e-2, rtol=3e-2).bypasses


@pytest.mark.gpu
def test_groups_of_any_size_on_a_gpu_whose_gradient_lies_in_columns():
    """One group is empty. Torch would end the process."""
    a, b = torch.randn(24, 16, device="cuda").bfloat16(), torch.randn(4, 16, 32, device="cuda").bfloat16()
    ends, grad = [3, 3, 17, 24], in_columns(torch.randn(24, 32, device="cuda").bfloat16())
    compiled = thunder.jit(product, executors=["torch"], transforms=[fusioncache.FusionCache()])
    ours = differentiate(compiled, a, b, tensor_of(ends, "cuda"), grad=grad)
    own = differentiate(multiply_in_a_loop, a, b, ends, grad=grad)
    torch.testing.assert_close(ours, own, atol=3e-2, rtol=3e-2)
