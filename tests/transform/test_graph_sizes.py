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
