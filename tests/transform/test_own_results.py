"""Results are tensors of their own, or views of one another and of arguments, as those of plain Thunder are."""

import inspect

import pytest
import thunder
import torch
from models import compile_plain, compile_with
from renaming_programs import draw_arguments, draw_program, observe, says_the_same

import fusioncache


def compare(seeds, compile_, *, gradients=False):
    """Compares what can be told of the results of random programs; returns how many observations there were.

    Where plain Thunder is not as eager torch is, either will do.
    """
    count = 0
    for seed in seeds:
        program, make = draw_program(seed), draw_arguments(seed, gradients=gradients)
        plain, eager = (
            observe_if_views_can_be_taken(each, make) for each in (thunder.jit(program, executors=[]), program)
        )
        if not plain:
            continue
        ours = compile_(program)
        for _ in range(2):
            for what, found in observe(ours, make):
                count += 1
                right = any(what in each and says_the_same(found, each[what]) for each in (plain, eager))
                assert right, f"{what} of {inspect.getsource(program)}{found}, and not {plain.get(what)}"
    return count


def observe_if_views_can_be_taken(function, make):
    """Returns what can be told of results; nothing where torch cannot take a view. Thunder's primitives copy then."""
    try:
        return dict(observe(function, make))
    except RuntimeError:
        return {}


def with_templates(backend, store=False):
    cache = fusioncache.Cache(record=False, store=store)
    return lambda program: compile_with(program, backend, cache, programs=False)[0]


def test_results_are_told_apart_as_those_of_plain_thunder():
    assert compare(range(80), with_templates("eager")) > 1500


def test_so_it_is_with_gradients():
    assert compare(range(500, 540), with_templates("eager"), gradients=True) > 900


@pytest.mark.usefixtures("eager_regions")
def test_so_it_is_without_the_transform():
    assert compare(range(300, 320), compile_plain) > 350


def test_two_names_for_one_result_are_two_tensors_with_one_memory():
    def function(w):
        v = torch.sin(w)
        return v, v.reshape(6, 6), v.view(6, 6)

    ours, _ = compile_with(function, programs=False)
    for _ in range(2):
        one, *others = ours(torch.zeros(6, 6))
        one.unsqueeze_(0)
        assert [tuple(other.shape) for other in others] == [(6, 6), (6, 6)]
        one.add_(1)
        assert all(torch.equal(other, torch.ones(6, 6)) for other in others)


def test_a_result_is_no_argument():
    def function(w):
        return torch.zeros(2), w.reshape(6, 6).to(torch.float32)

    ours, _ = compile_with(function, programs=False)
    for _ in range(2):
        w = torch.zeros(6, 6)
        result = ours(w)[1]
        result.unsqueeze_(0).add_(1)
        assert w.shape == (6, 6) and torch.equal(w, torch.ones(6, 6))


def test_what_is_the_argument_for_torch_as_well_stays_it():
    """``to`` returns what it is given where there is nothing to do."""

    def function(w):
        return torch.zeros(2), w.to(torch.float32)

    w = torch.zeros(6, 6)
    assert function(w)[1] is w
    assert thunder.jit(function, executors=[])(w)[1] is w
    assert compile_with(function, programs=False)[0](w)[1] is w


def test_a_view_of_what_is_an_argument_all_the_same_is_not_left_out():
    """Behind a name for an argument, so that what is returned is a view of it, and not the argument."""

    def function(p):
        view = p.to(torch.float32).expand(4, 4)[0:4]
        return view.reshape(16), view

    for p in (torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)):
        ours, _ = compile_with(function, programs=False)
        for _ in range(2):
            result = ours(p)[1]
            assert result is not p and result.data_ptr() == p.data_ptr()
