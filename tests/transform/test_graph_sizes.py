"""Other sizes for Dynamo's graphs: those that its guards allow."""

import pytest
import torch

from fusioncache.accelerators.sizes.values import vary_sizes


def capture(function, *calls, **options):
    """Returns the graph that Dynamo makes last of a function, and what it is called with."""
    torch._dynamo.reset()
    seen = []

    def take(graph, _):
        def run(*args):
            seen.append((graph, args))
            return graph(*args)

        return run

    compiled = torch.compile(function, backend=take, **options)
    for args in calls:
        compiled(*args)
    return seen[-1]


def list_sizes(args):
    return [tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in args]


def capture_lengths(function, *lengths):
    return capture(function, *((torch.zeros(2, each),) for each in lengths))


@pytest.mark.parametrize(
    ("length", "other"), [(96, 160), (65, 67), (24, 40), (512, 640), (2048, 2176), (2, 6), (3, 5), (6, 10)]
)
def test_another_size_is_divisible_alike(length, other):
    graph, args = capture_lengths(lambda x: x * 2, 7, length)
    assert list_sizes(vary_sizes(graph, args)) == [other, (2, other)]


@pytest.mark.parametrize(
    ("program", "other"),
    [
        (lambda x: x * 2 if x.shape[1] < 100 else x + 1, 32),  # a step back, as 160 is too long
        (lambda x: x * 2 if 95 < x.shape[1] <= 98 else x + 1, 98),
        (lambda x: x * 2 if x.shape[1] % 3 == 0 else x + 1, None),  # where those that are tried would be another graph
        (lambda x: x * 2 if 95 < x.shape[1] < 97 else x + 1, None),
    ],
)
def test_guards_hold(program, other):
    """The other way through the program is another graph."""
    graph, args = capture_lengths(program, 90, 96)
    found = vary_sizes(graph, args)
    assert found is None if other is None else list_sizes(found) == [other, (2, other)]


def test_no_size_is_that_of_something_else():
    width = torch.zeros(160)
    graph, args = capture(lambda x: x.sum(1, keepdim=True) * width, (torch.zeros(2, 90),), (torch.zeros(2, 96),))
    assert (2, 32) in list_sizes(vary_sizes(graph, args))  # 160 would be next


def test_symbols_are_told_apart():
    def flatten(x, y):
        return x.reshape(x.shape[0] * x.shape[1], 3) + y

    calls = [(torch.zeros(rows, length, 3), torch.zeros(rows * length, 3)) for rows, length in ((4, 6), (8, 8))]
    graph, args = capture(flatten, *calls)
    rows, length = (size for size in list_sizes(vary_sizes(graph, args)) if isinstance(size, int))
    assert len({rows, length, 8}) == 3
    shapes = [size for size in list_sizes(vary_sizes(graph, args)) if isinstance(size, tuple)]
    assert shapes == [(rows, length, 3), (rows * length, 3)]
    assert graph(*vary_sizes(graph, args))[0].shape == (rows * length, 3)


def test_what_has_no_symbols_is_the_very_same():
    weight = torch.zeros(3, 3)
    graph, args = capture(lambda x: x @ weight, (torch.zeros(4, 3),), (torch.zeros(6, 3),))
    others = vary_sizes(graph, args)
    assert [other is own for own, other in zip(args, others, strict=True)].count(True) == 1
    graph, args = capture(lambda x: x @ weight, (torch.zeros(4, 3),))
    assert vary_sizes(graph, args) is None


@pytest.mark.parametrize("kind", ["plain", "leaf", "computed"])
def test_a_tensor_has_gradients_as_before(kind):
    def make(length):
        x = torch.zeros(2, length, dtype=torch.float64, requires_grad=kind != "plain")
        return (x * 1 if kind == "computed" else x,)

    graph, args = capture(torch.tanh, make(4), make(6))
    (tensor,) = (each for each in vary_sizes(graph, args) if isinstance(each, torch.Tensor))
    assert (tensor.requires_grad, tensor.is_leaf) == (kind != "plain", kind != "computed")
    assert tensor.dtype == torch.float64
    assert tensor.is_contiguous()


def test_other_arguments_are_no_others():
    graph, args = capture_lengths(torch.tanh, 4, 6)
    assert vary_sizes(graph, args[:-1]) is None
    number, tensor = args
    assert vary_sizes(graph, (number, torch.nn.Parameter(tensor))) is None
    assert vary_sizes(graph, (True, tensor)) is None
