"""Runs a program, and notes all that can be told of each call: result, error, state, traces, which calls were traced."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import thunder
import torch
from torch.utils.hooks import RemovableHandle

from benchmarks.equality.traces import read_texts

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")

type Program = Callable[[Runner], None]


def program(function: Program) -> Program:
    """Marks a function as a program."""
    function.is_program = True  # type: ignore[attr-defined]
    return function


def observe(function: Program) -> dict[str, str]:
    """Runs a program, and returns each fact under its name, in order."""
    torch.manual_seed(0)
    RemovableHandle.next_id = 0  # hooks are known by numbers, which are in the traces
    runner = Runner()
    function(runner)
    assert runner.facts, "it has to call something"
    return runner.facts


class Runner:
    """Compiles what a program calls, once each, and notes what comes of every call.

    Attributes:
        facts: what was noted so far, by name.
        options: of ``thunder.jit`` for what is called for the first time.
    """

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.options: dict[str, Any] = {"executors": []}
        self._compiled: list[tuple[Any, Any]] = []
        self._calls = 0

    def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the compiled function. Returns its result, or the exception that it raised."""
        self._calls += 1
        compiled = self.compiled(function)
        before = thunder.cache_misses(compiled)
        try:
            result = compiled(*args, **kwargs)
            self.note("result", describe(result))
            self.note("gradients", describe(_gradients(function, args, kwargs, result)))
        except Exception as error:
            result = error
            self.note("error", _describe_error(error))
        self.note("arguments afterwards", describe((args, kwargs)))
        if isinstance(function, torch.nn.Module):
            self.note("state afterwards", _describe_state(function))
        traced = thunder.cache_misses(compiled) - before
        self.note("cache", f"{traced} misses, {thunder.cache_hits(compiled)} hits so far")
        if traced and not isinstance(result, Exception):
            for name, text in read_texts(compiled).items():
                self.note(name, text)
        return result

    def note(self, name: str, fact: object) -> None:
        """Notes a fact of the last call."""
        name = f"call {self._calls}, {name}"
        while name in self.facts:
            name += "'"
        self.facts[name] = _ADDRESS.sub("0x", str(fact))

    def compiled(self, function: Any) -> Any:
        """Returns what ``thunder.jit`` made of a function."""
        for known, compiled in self._compiled:
            if known is function:
                return compiled
        compiled = self.compiled_apart(function)
        self._compiled.append((function, compiled))
        return compiled

    def compiled_apart(self, function: Any) -> Any:
        """Returns what ``thunder.jit`` makes of a function now."""
        return thunder.jit(function, **self.options)


def describe(value: Any) -> str:
    """Returns a text that is the same for two values that nobody can tell apart."""
    if isinstance(value, torch.Tensor):
        kind = "Parameter" if isinstance(value, torch.nn.Parameter) else type(value).__name__
        shape = f"{value.dtype} {tuple(value.shape)} {value.stride()} requires_grad={value.requires_grad}"
        return f"{kind}({shape} bits={_bits(value)})"
    if isinstance(value, Mapping):
        items = ", ".join(f"{describe(key)}: {describe(each)}" for key, each in value.items())
        return f"{type(value).__name__}{{{items}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(describe, value))}]"
    return f"{type(value).__name__} {value!r}"


def _bits(tensor: torch.Tensor) -> str:
    whole = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return bytes(whole.view(torch.uint8).tolist()).hex()


def _gradients(function: Any, args: Any, kwargs: Any, result: Any) -> dict[str, Any]:
    """Goes backward from all results; returns the gradients of arguments and parameters, and forgets them."""
    leaves = {f"argument {n}": value for n, value in enumerate([*args, *kwargs.values()])}
    if isinstance(function, torch.nn.Module):
        leaves |= dict(function.named_parameters())
    found: dict[str, Any] = {}
    total = _sum(result)
    if total is not None:
        total.backward()
        for name, leaf in leaves.items():
            if isinstance(leaf, torch.Tensor) and leaf.is_leaf and leaf.grad is not None:
                found[name], leaf.grad = leaf.grad, None
    return found


def _sum(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double().sum() if value.requires_grad and not value.is_leaf else None
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    totals = [total for each in inner if (total := _sum(each)) is not None]
    return sum(totals[1:], totals[0]) if totals else None


def _describe_error(error: BaseException | None) -> str:
    """Tells type, message, what it came from, and where in the programs it was raised."""
    lines = []
    while error is not None and len(lines) < 9:
        places = [
            f"{frame.name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if "hostile_programs" in frame.filename and "observation" not in frame.filename
        ]
        lines.append(f"{type(error).__module__}.{type(error).__qualname__}: {error} at {' '.join(places)}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter ".join(lines)


def _describe_state(module: torch.nn.Module) -> str:
    """Tells all parameters, buffers and plain attributes of all submodules."""
    lines = []
    for name, each in module.named_modules():
        plain = {key: value for key, value in vars(each).items() if not key.startswith("_") or key == "_hidden"}
        lines.append(f"{name}: {describe(plain)}")
        lines += [f"{name}.{key}: {describe(value)}" for key, value in each.named_buffers(recurse=False)]
        lines += [f"{name}.{key}: {describe(value)}" for key, value in each.named_parameters(recurse=False)]
    return "\n".join(lines)
