"""All groups of shortcuts, and each without each other, leave all traces of a small model as Thunder makes them.

``benchmarks/equality/traces.py`` has each by itself and all but each, for every model of the zoo.
"""

from functools import cache

import pytest
import torch

from benchmarks.equality.traces import Piece, find_difference
from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING

SETS = {"all": TRACING} | {
    f"bit {bit} is {value}": tuple(name for number, name in enumerate(TRACING) if number >> bit & 1 == value)
    for bit in range(len(TRACING).bit_length())
    for value in (0, 1)
}
"""Groups by the bits of their numbers: for each two there is a set with the one and without the other."""


class Model(torch.nn.Module):
    """A little of everything: a module, a hook, a condition, a buffer, arguments in a list and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.Linear(4, 4, bias=False)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.sizes = [1, 2.5]

    def forward(self, x, *others):
        x = self.add(self.block(x) * self.scale, *others, b=2, **{"a": x})
        return x + 1 if x.shape[0] > 2 else x, {"x": x[:1]}

    def add(self, x, *others, **more):
        for other in others:
            x = x + other * self.sizes[-1]
        return x + sum(more[name] for name in sorted(more))


@cache
def make_piece() -> Piece:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    model = Model()
    model.register_forward_pre_hook(lambda module, args: (args[0] * 3, *args[1:]))
    return Piece(model, {"executors": []}, (x, x, 2.0))


@cache
def trace_own() -> dict[str, str]:
    return make_piece().trace()


@pytest.mark.parametrize("name", SETS)
def test_traces_are_thunders_own_to_the_letter(name):
    own = trace_own()
    tracing.install(SETS[name])
    assert find_difference(own, make_piece().trace()) is None
