"""Stored nvFuser kernels on a GPU, given arguments that differ in anything but layout from those they were made for."""

from unittest import mock

import pytest
import torch
from gpu_artifacts import are_same, copy_all, find_region, load_region, make_nvfuser, rand

from fusioncache.backends.nvfuser.persistence import copy_tensor

pytestmark = pytest.mark.gpu

KINDS = ["pointwise-0", "pointwise-bfloat16-0", "rms-norm-0", "reduction-0", "choose-0", "softmax-0"]


def shift(args, elements):
    """The same values, so many elements behind an aligned address."""
    return [
        torch.empty(arg.numel() + elements, dtype=arg.dtype, device="cuda")[elements:].view_as(arg).copy_(arg)
        for arg in args
    ]


@pytest.mark.parametrize("elements", [1, 2, 4, 6])
@pytest.mark.parametrize("name", KINDS)
def test_unaligned_pointers_are_never_given_to_wide_loads(name, elements):
    """As of ``x[1:]``. A kernel that loads 16 bytes at once from there would end the process."""
    item = find_region(name)
    run, off = load_region(item), shift(item.args, elements)
    assert are_same(run(off), list(item.compiled.run(off)))
    one = [off[0], *item.args[1:]]
    assert are_same(run(one), list(item.compiled.run(one)))
    torch.cuda.synchronize()
    assert are_same(run(item.args), item.outputs)


def test_inputs_that_are_aligned_otherwise_are_compiled_for():
    item = find_region("pointwise-0")
    backend = make_nvfuser()
    with mock.patch.object(backend, "compile", wraps=backend.compile) as compile_:
        run = load_region(item)
    off = shift(item.args, 1)
    assert are_same(run(off), list(item.compiled.run(off)))
    assert are_same(run(item.args), item.outputs)
    run(off)
    assert compile_.call_count == 1


def test_what_is_compiled_for_unaligned_inputs_is_kept_for_these():
    item = find_region("pointwise-0")
    off = [torch.empty(arg.numel() + 1, device="cuda")[1:].view_as(arg).copy_(arg) for arg in item.args]
    compiled = make_nvfuser().persist(item.graph, off)
    assert compiled.artifacts, compiled.reason
    assert are_same(make_nvfuser().load(compiled.artifacts, item.graph, off)(off), list(compiled.run(off)))


def test_what_is_written_in_place_is_written_once_wherever_it_lies():
    item = find_region("in-place-0")
    if item.compiled.artifacts is None:
        pytest.skip(f"not stored: {item.compiled.reason}")
    run = load_region(item)
    for elements in (0, 1):
        ours, theirs = shift(item.args, elements), shift(item.args, elements)
        assert are_same(run(ours), list(item.compiled.run(theirs)))
        assert are_same(ours, theirs)


@pytest.mark.parametrize("name", ["pointwise-0", "pointwise-bfloat16-0", "whole-reduction-0", "two-segments-0"])
def test_executables_are_kept_where_algorithms_are_to_be_deterministic(name):
    item, fills = find_region(name), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        compiled = make_nvfuser().persist(item.graph, copy_all(item.args))
        assert compiled.artifacts, compiled.reason
        assert torch.utils.deterministic.fill_uninitialized_memory is fills
        outputs = make_nvfuser().load(compiled.artifacts, item.graph, item.args)(copy_all(item.args))
        assert are_same(outputs, item.outputs)
    finally:
        torch.use_deterministic_algorithms(False)


def test_inputs_may_share_their_memory():
    item = find_region("pointwise-0")
    run, count = load_region(item), item.args[0].numel()
    memory = rand(count + 16)
    one, other = memory[:count].view_as(item.args[0]), memory[16:].view_as(item.args[0])
    for args in ([one, one], [one, other], [other, one]):
        assert are_same(run(args), list(item.compiled.run([copy_tensor(arg) for arg in args])))


@pytest.mark.parametrize("name", ["pointwise-0", "several-0", "reshaped-0", "in-place-0"])
def test_autograd_sees_nothing_of_a_run(name):
    item = find_region(name)
    if item.compiled.artifacts is None:
        pytest.skip(f"not stored: {item.compiled.reason}")
    args = [arg.requires_grad_() for arg in copy_all(item.args)]
    outputs = load_region(item)(args)
    assert not any(output.requires_grad for output in outputs if not any(output is arg for arg in args))
    assert are_same(outputs, item.outputs)


def test_views_that_are_to_be_negated_are_read_as_nvfuser_reads_them():
    """Which is as they lie in memory: nvFuser knows of no such views, with a store or without one."""
    item = find_region("pointwise-0")
    views = [torch._neg_view(arg) for arg in item.args]
    assert are_same(load_region(item)(views), list(item.compiled.run(views)))
    compiled = make_nvfuser().persist(item.graph, views)
    assert (compiled.artifacts, compiled.lasting) == (None, False)


def test_tensors_with_gaps_are_kept_for_their_strides():
    item = find_region("pointwise-0")
    gaps = [rand(arg.shape[0], 2 * arg.shape[1])[:, ::2].copy_(arg) for arg in item.args]
    compiled = make_nvfuser().persist(item.graph, gaps)
    assert compiled.artifacts, compiled.reason
    run = make_nvfuser().load(compiled.artifacts, item.graph, gaps)
    assert are_same(run(gaps), list(compiled.run(gaps)))
    with pytest.raises(ValueError, match="another layout"):
        make_nvfuser().load(compiled.artifacts, item.graph, item.args)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_run_follows_its_arguments_to_another_device():
    item = find_region("pointwise-0")
    run = load_region(item)
    there = [arg.to("cuda:1") for arg in item.args]
    outputs = run(there)
    assert all(output.get_device() == 1 for output in outputs)
    assert are_same([output.to("cuda:0") for output in outputs], item.outputs)
    assert are_same(run(item.args), item.outputs)
