"""For which other sizes a general definition is executed, and with what, without a GPU: nvFuser is not asked here."""

from math import inf

import fake_cuda
import pytest
import torch
from drawn_regions import draw

from fusioncache.backends.nvfuser.general import compile_for_other_sizes, expand_results, make_arguments
from fusioncache.ir import GeneralRegion, Graph
from fusioncache.template.generalization import make_family


@pytest.fixture(autouse=True)
def _needs_nvfuser():
    fake_cuda.find_nvfuser_executor()


def rows(length: int) -> Graph:
    return draw("tanh(x)", x=(length, 4))


def merged(length: int) -> Graph:
    """Rows of a batch in one dimension, which is a size of its own."""
    return draw(f"add(reshape(x, ({2 * length}, 4)), y)", x=(2, length, 4), y=(2 * length, 4))


def flattened(length: int) -> Graph:
    """The same with a size that no input has."""
    return draw(f"reshape(x, ({2 * length}, 4))", x=(2, length, 4))


def begun(length: int) -> Graph:
    """The first ten rows, and all of them."""
    return draw("slice_prim(x, (0, 0), (10, 4), (1, 1))", "tanh(x)", x=(length, 4))


def cut(length: int) -> Graph:
    """As many rows of a table of 64 as there are, added to them."""
    return draw(f"add(x, slice_prim(table, (0, 0), ({length}, 4), (1, 1)))", x=(length, 4), table=(64, 4))


def widened(length: int) -> Graph:
    """As many rows of a table as there are, for each of two."""
    first = f"slice_prim(table, (0, 0), ({length}, 4), (1, 1))"
    return draw(f"broadcast_in_dim({first}, (2, {length}, 4), (1, 2))", "tanh(x)", x=(length, 4), table=(64, 4))


def generalize(*regions: Graph) -> GeneralRegion:
    return make_family(list(regions)).general


def ones_for(general: GeneralRegion) -> list[torch.Tensor]:
    """Arguments of the last of its regions."""
    return [torch.ones(type_.shape) for type_ in general.regions[-1].inputs]


@pytest.mark.parametrize("region", [merged, flattened])
def test_sizes_grow_together(region):
    general = generalize(region(8), region(12))
    found = list(make_arguments(general, ones_for(general), general.values[-1]))
    assert [args[0].shape[:2] for args, _ in found] == [(2, 6), (2, 24), (2, 3)]
    assert all(set(values) == {args[0].shape[1], 2 * args[0].shape[1]} for args, values in found)


@pytest.mark.parametrize(("region", "sizes"), [(begun, [24, 96, 12]), (cut, [24, 12, 6, 3])])
def test_sizes_with_which_torch_computes_something_else_are_left_out(region, sizes):
    general = generalize(region(32), region(48))
    made = make_arguments(general, ones_for(general), general.values[-1])
    assert [args[0].shape[0] for args, _ in made] == sizes


def test_arguments_lie_as_the_first_ones_do():
    general = generalize(rows(8), rows(12))
    turned = torch.ones(4, 12).t()
    found = [args[0] for args, _ in make_arguments(general, [turned], general.values[-1])]
    assert found and all(x.stride() == (1, x.shape[0]) and not x.any() for x in found)
    for other in (torch.ones(12, 8)[:, :4], torch.ones(12, 1).expand(12, 4)):
        assert not list(make_arguments(general, [other], general.values[-1]))


def test_what_cannot_run_does_no_harm():
    def fail(args):
        raise RuntimeError("out of memory")

    general = generalize(rows(8), rows(12))
    assert compile_for_other_sizes(lambda values: fail, general, ones_for(general), (12,), inf) == 0


@pytest.mark.parametrize("length", [12, 20])
def test_results_that_are_not_expanded_are_expanded(length):
    general = generalize(widened(8), widened(12))
    args = [torch.randn(length, 4), torch.randn(64, 4)]
    unexpanded = args[1][None, :length]
    found, other = expand_results(lambda args: [unexpanded, args[0].tanh()], general, [length])(args)
    assert found.shape == (2, length, 4) and found.stride() == (0, 4, 1) and found.data_ptr() == args[1].data_ptr()
    assert torch.equal(found, unexpanded.expand(2, length, 4)) and torch.equal(other, args[0].tanh())


@pytest.mark.parametrize(
    ("shape", "length"), [((2, 12, 4), 12), ((1, 11, 4), 12), ((12, 4), 12), ((3, 12, 4), 12), ((1, 12, 4), 1)]
)
def test_results_of_other_shapes_or_of_other_arguments_stay(shape, length):
    general, made = generalize(widened(8), widened(12)), torch.zeros(shape)
    args = [torch.randn(length, 4), torch.randn(64, 4)]
    assert expand_results(lambda args: [made, args[0].tanh()], general, [12])(args)[0] is made
