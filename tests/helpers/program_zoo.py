"""What people compile, each as small as can be, and a process that trains all of it over stores.

    python program_zoo.py DIRECTORY [load]

prints what it found, as JSON: for each case a digest of the results of three training steps, and what became of its
programs. With ``load`` nothing may be interpreted, and some cases run again, with their programs derived and compared.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import quick_process  # isort: split

import torch
from expert_layers import Experts
from stored_programs import Cell, compile_anew, counts, without_interpreter
from torch.nn import functional

Compile = Callable[..., Any]
"""Compiles a model or a function, with options of ``FusionCache`` by name."""


class Tied(torch.nn.Module):
    """An embedding that is the head's weight as well."""

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


def plain_function(x: torch.Tensor, weight: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
    return {"sum": torch.tanh(x @ weight) * scale, "max": torch.relu(x)}


def train(compiled: Any, model: torch.nn.Module, *inputs: Any) -> list[torch.Tensor]:
    """Three steps; what came out of each, and the parameters after it, and the buffers at the end."""
    results, parameters = [], list(model.parameters())
    for _ in range(3):
        output = compiled(*inputs)
        output.sum().backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
        results += [output.detach().clone(), *(parameter.detach().clone() for parameter in parameters)]
        model.zero_grad()
    return [*results, *model.buffers()]


def run_function(compile_: Compile) -> list[torch.Tensor]:
    x, weight = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    compiled = compile_(plain_function)
    results = []
    for _ in range(3):
        out = compiled(x, weight, scale=2.0)
        results += [*out.values(), *torch.autograd.grad(out["sum"].sum(), weight)]
    return results


def run_kinds_of_input(compile_: Compile) -> list[torch.Tensor]:
    model = Cell()
    compiled = compile_(model)
    results = []
    for rows in (2, 3, 2):
        results += train(compiled, model, torch.randn(rows, 4))
    model.eval()
    with torch.no_grad():
        results.append(compiled(torch.randn(2, 4)))
    with torch.inference_mode():
        results.append(compiled(torch.randn(2, 4)).clone())
    return results


def train_new(make: Callable[[], torch.nn.Module], *inputs: Any, **options: Any) -> Callable[[Compile], Any]:
    """Trains a model that is made where it is run."""

    def run(compile_: Compile) -> list[torch.Tensor]:
        model = make()
        return train(compile_(model, **options), model, *inputs)

    return run


CASES: dict[str, Callable[[Compile], list[torch.Tensor]]] = {
    "function": run_function,
    "kinds_of_input": run_kinds_of_input,
    "tied": train_new(Tied, torch.arange(6).reshape(2, 3), recompute="residual"),
    "experts": train_new(Experts, torch.linspace(-1, 1, 96).reshape(6, 16)),
    "sets": train_new(Unordered, torch.linspace(-1, 1, 12).reshape(3, 4), {"b", "a", "c"}),
    "buffers": train_new(Counter, torch.linspace(-1, 1, 12).reshape(3, 4)),
}


def run_case(name: str, directory: Path) -> dict[str, Any]:
    """Runs a case as a process does that has done nothing yet, and says what came of it."""
    torch.manual_seed(0)
    transforms = []

    def compile_(model: Any, **options: Any) -> Any:
        compiled, transform = compile_anew(model, directory / name, **options)
        transforms.append(transform)
        return compiled

    results = CASES[name](compile_)
    content = b"".join(result.detach().float().numpy().tobytes() for result in results)
    found = [counts(transform) for transform in transforms]
    refused = {reason: count for _, _, reasons in found for reason, count in reasons.items()}
    loaded, made = sum(each[0] for each in found), sum(each[1] for each in found)
    return {"digest": hashlib.sha256(content).hexdigest(), "loaded": loaded, "made": made, "refused": refused}


def run_cases(names: Iterable[str], directory: Path) -> dict[str, Any]:
    """Runs cases one after the other. What one of them raises is what became of it."""
    done = {}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        for name in names:
            try:
                done[name] = run_case(name, directory)
            except Exception as error:
                done[name] = {"error": f"{type(error).__name__}: {error}"}
    return done


def main(directory: Path, *, load: bool) -> dict[str, Any]:
    """The process. Returns what it found in each case, and under ``verified`` what became of those that ran again."""
    warnings.simplefilter("ignore")
    quick_process.take_vectors_on_trust()
    if not load:
        return run_cases(CASES, directory)
    with without_interpreter():
        found = run_cases(CASES, directory)
    os.environ["FUSIONCACHE_VERIFY"] = "1"
    return {**found, "verified": run_cases(["tied", "buffers"], directory)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), load=sys.argv[2:] == ["load"])))
