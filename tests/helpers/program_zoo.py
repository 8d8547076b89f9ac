"""Minimal models of the kinds that people compile, and a process that trains all of them over stores.

``python program_zoo.py DIRECTORY [load]`` prints digests of results and counts of programs as JSON. With ``load``
no function may be interpreted, and some cases run again, with their programs derived and compared.
"""

import collections
import contextlib
import enum
import functools
import hashlib
import json
import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import quick_process  # isort: split

import torch
from expert_layers import Experts
from stored_programs import compile_anew, counts, without_interpreter
from torch.nn import functional


class Tied(torch.nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, width)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2))
        self.norm = torch.nn.RMSNorm(width)
        self.head = torch.nn.Linear(width, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + functional.silu(layer(self.norm(x)))
        return self.head(x)


class Counter(torch.nn.Module):
    """Writes into a buffer, and sets an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        self.mean.mul_(0.9).add_(x.detach().mean(0) * 0.1)
        return x + self.mean


class Kind(enum.Flag):
    FAST = 1
    SMALL = 2


@dataclass
class Options:
    names: frozenset = frozenset({"a", "b", "c", "d", "e"})
    kinds: set = field(default_factory=lambda: {Kind.FAST, Kind.SMALL, "x", 1, (2, "y")})


def scale(x: torch.Tensor, by: Any = {"p", "q", "r"}) -> torch.Tensor:  # noqa: B006
    return x * 2.0 if "p" in by and "q" in {"q", "r", "s"} else x


class Unordered(torch.nn.Module):
    """Has sets of all kinds: each process has another order of what is in them."""

    known = frozenset({"u", "v", "w", "x"})

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.options, self.marks = Options(), {object()}
        self.functions = {scale, len, functools.partial(scale, by="p"), Options, functional.silu}
        self.tables = collections.defaultdict(set, a={"m", "n", "o"})
        self.linear.register_forward_hook(lambda module, args, output: output * 2.0)

    def forward(self, x: torch.Tensor, names: Any = ()) -> torch.Tensor:
        return scale(self.linear(x)) if "u" in self.known and "a" in names else x


CASES = {
    "tied": (Tied, {"recompute": "residual"}, torch.arange(6).reshape(2, 3)),
    "experts": (Experts, {}, torch.linspace(-1, 1, 96).reshape(6, 16)),
    "sets": (Unordered, {}, torch.linspace(-1, 1, 12).reshape(3, 4), {"b", "a", "c"}),
    "buffers": (Counter, {}, torch.linspace(-1, 1, 12).reshape(3, 4)),
}


def run_case(name, directory):
    """Takes three steps; returns a digest of outputs, parameters and buffers, and the counts of programs."""
    torch.manual_seed(0)
    make, options, *inputs = CASES[name]
    model, found = make(), hashlib.sha256()
    compiled, transform = compile_anew(model, directory / name, **options)
    for _ in range(3):
        output = compiled(*inputs)
        output.sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        model.zero_grad()
        for result in (output, *model.state_dict().values()):
            found.update(result.detach().numpy().tobytes())
    return dict(zip(("digest", "loaded", "made", "refused"), (found.hexdigest(), *counts(transform)), strict=True))


def run_cases(names, directory):
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return {name: run_case(name, directory) for name in names}


def main(directory, *, load):
    warnings.simplefilter("ignore")
    quick_process.skip_vector_checks()
    if not load:
        return run_cases(CASES, directory)
    with without_interpreter():
        found = run_cases(CASES, directory)
    os.environ["FUSIONCACHE_VERIFY"] = "1"
    return {**found, "verified": run_cases(["tied", "buffers"], directory)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), load=sys.argv[2:] == ["load"])))
