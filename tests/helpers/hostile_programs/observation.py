"""Runs a program, and records what each call shows: result, error, state, traces, which calls were traced."""

import re
import traceback
from collections.abc import Mapping

import thunder
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from benchmarks.equality.traces import read_texts

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def answering(base=object, /, **answers):
    """Returns a class whose methods return these values, or are these functions."""
    methods = {
        name: answer if callable(answer) else lambda self, *given, answer=answer: answer
        for name, answer in answers.items()
    }
    return type("Answering", (base,), methods)


def observe(program):
    """Runs a program, and returns the facts by name, in order."""
    torch.manual_seed(0)
    RemovableHandle.next_id = 0  # hooks have numbers, which occur in the traces
    runner = Runner()
    program(runner)
    assert runner.facts, "it has to call something"
    runner.note("events", runner.events)
    return runner.facts


class Runner:
    """Compiles each function that a program calls once, and records facts about every call.

    Attributes:
        events: reported by the program while it ran.
        facts: recorded so far, by name.
        options: of ``thunder.jit`` for functions that are called for the first time.
    """

    def __init__(self):
        self.events, self.facts, self.options = [], {}, {"executors": []}
        self._compiled, self._calls = {}, 0

    def each(self, *functions):
        """Calls each of these functions of one tensor."""
        for function in functions:
            self(function, X)

    def __call__(self, function, /, *args, **kwargs):
        """Calls the compiled function."""
        self._calls += 1
        if id(function) not in self._compiled:
            self._compiled[id(function)] = function, thunder.jit(function, **self.options)
        compiled = self._compiled[id(function)][1]
        before, failed = thunder.cache_misses(compiled), False
        try:
            result = compiled(*args, **kwargs)
            self.note("result", describe(result))
            self.note("gradients", describe(_compute_gradients(function, args, result)))
        except Exception as error:
            self.note("error", _describe_error(error))
            failed = True
        self.note("afterwards", describe((args, function)))
        traced = thunder.cache_misses(compiled) - before
        self.note("cache", f"{traced} misses, {thunder.cache_hits(compiled)} hits so far")
        if traced and not failed:
            for name, text in read_texts(compiled).items():
                self.note(name, text)

    def note(self, name, fact):
        """Records a fact about the last call."""
        self.facts[f"call {self._calls}, {name}"] = re.sub(r"0x[0-9a-f]{6,}", "0x", str(fact))


def describe(value):
    """Returns a text that is equal for two values that cannot be distinguished."""
    if isinstance(value, torch.Tensor):
        whole = value.detach().resolve_conj().contiguous().reshape(-1)
        bits = bytes(whole.view(torch.uint8).tolist()).hex()
        shape = f"{value.dtype} {tuple(value.shape)} {value.stride()} requires_grad={value.requires_grad}"
        return f"{type(value).__name__}({shape} bits={bits})"
    if isinstance(value, torch.nn.Module):
        return describe(vars(value))
    if isinstance(value, Mapping):
        items = ", ".join(f"{describe(key)}: {describe(each)}" for key, each in value.items())
        return f"{type(value).__name__}{{{items}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(describe, value))}]"
    return f"{type(value).__name__} {value!r}"


def _compute_gradients(function, args, result):
    """Returns the gradients of arguments and parameters, if the result has any."""
    parameters = function.parameters() if isinstance(function, torch.nn.Module) else ()
    tensors = [each for each in tree_leaves((args, result)) if isinstance(each, torch.Tensor) and each.requires_grad]
    leaves = [*parameters, *(each for each in tensors if each.is_leaf)]
    results = [each.double().sum() for each in tensors if not each.is_leaf]
    return torch.autograd.grad(results, leaves, allow_unused=True) if results and leaves else ()


def _describe_error(error):
    """Returns type, message and places in the programs of an error and of the errors that it came from."""
    lines = []
    while error is not None and len(lines) < 9:
        places = [
            f"{frame.name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if "hostile_programs/" in frame.filename and "observation" not in frame.filename
        ]
        lines.append(f"{type(error).__module__}.{type(error).__qualname__}: {error} at {' '.join(places)}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter ".join(lines)
