"""Modules with hooks, buffers, flags and ways of their own to keep attributes."""

from __future__ import annotations

import torch
from torch import nn

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Lin(nn.Module):
    """A linear layer with an attribute."""

    def __init__(self, scale=2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.scale = scale

    def forward(self, x, shift=0):
        return x @ self.weight * self.scale + shift


@program
def attributes_of_their_own_kind(run: Runner) -> None:
    events = []

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.weight = nn.Linear(3, 3), nn.Parameter(torch.ones(3))
            self.hidden_scale = 3

        def __getattr__(self, name):
            if name == "scale":
                return super().__getattr__("weight") * self.hidden_scale
            if name == "magic":
                return 5
            return super().__getattr__(name)

        def __setattr__(self, name, value):
            events.append(name)
            super().__setattr__(name, value)

        @property
        def twice(self):
            return self.weight * 2

        @property
        def broken(self):
            return self.no_such_thing

        def forward(self, x):
            x = self.inner(x) * self.scale + self.magic + self.twice
            return x + hasattr(self, "nothing") + getattr(self, "nothing", 4) + hasattr(self, "broken")

    class Missing(nn.Module):
        def forward(self, x):
            return self.no_such_thing(x)

    class Broken(Lazy):
        def forward(self, x):
            return x + self.broken

    model = Lazy()
    run(model, X)
    model.hidden_scale = 4
    run(model, X)
    run(Missing(), X)
    run(Broken(), X)
    run.note("events", events)
