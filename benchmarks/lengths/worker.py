"""One way through all lengths, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import thunder
import torch
from torch import nn

import fusioncache
from benchmarks.common.counting import Counter, count_compiles, use_backend
from benchmarks.common.models import narrow_widths
from benchmarks.common.processes import serve
from benchmarks.common.steps import synchronize, warm_up
from benchmarks.common.thunder_jit import executors
from benchmarks.lengths.spec import WAYS, LengthsSpec, Way

_SEED, _MODEL = 2916, "Llama-2-7b-hf"

Call = Callable[[torch.Tensor], torch.Tensor]


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds and the counts of each step, and how far its outputs are from those of torch alone."""
    spec = LengthsSpec(**{**options, "lengths": tuple(options["lengths"])})
    use_backend(spec.backend)
    warm_up(lambda function: Compiled(WAYS[spec.way], spec.backend, function).call, spec.device, spec.dtype)
    model = make_model(spec)
    compiled = Compiled(WAYS[spec.way], spec.backend, model)
    steps = []
    for length in spec.lengths:
        before = compiled.counts()
        seconds, _ = take_step(model, compiled.call, make_tokens(spec, length), spec.device)
        counts = {name: count - before[name] for name, count in compiled.counts().items()}
        steps.append({"length": length, "seconds": seconds, **counts})
    again = tuple(dict.fromkeys(spec.lengths))[: spec.again]
    return {"steps": steps, "later": [time_later(spec, model, compiled.call, length) for length in again]}


def make_model(spec: LengthsSpec) -> nn.Module:
    """Returns litgpt's Llama with narrow widths, from a fixed seed."""
    from litgpt import GPT, Config

    torch.manual_seed(_SEED)
    most = max(spec.lengths)
    block = 1 << (most - 1).bit_length()  # also what is padded has to fit
    config = Config.from_name(_MODEL, n_layer=spec.layers, block_size=block, **narrow_widths(_MODEL, spec.device))
    return GPT(config).to(device=spec.device, dtype=getattr(torch, spec.dtype))


def make_tokens(spec: LengthsSpec, length: int) -> torch.Tensor:
    """Returns tokens of shape (batch, length), the same ones for one length in every process."""
    generator = torch.Generator().manual_seed(length)
    vocabulary = narrow_widths(_MODEL, spec.device)["padded_vocab_size"]
    return torch.randint(0, vocabulary, (spec.batch, length), generator=generator).to(spec.device)


def take_step(model: nn.Module, call: Call, tokens: torch.Tensor, device: str) -> tuple[float, torch.Tensor]:
    """Takes a training step without an optimizer; returns its seconds and its output."""
    model.zero_grad(set_to_none=True)
    synchronize(device)
    start = time.perf_counter()
    output = call(tokens)
    output.float().square().mean().backward()
    synchronize(device)
    return time.perf_counter() - start, output.detach()


def time_later(spec: LengthsSpec, model: nn.Module, call: Call, length: int) -> dict[str, float]:
    """Returns the median time of later steps of a length, and the worst relative L2 error there, gradients included."""
    tokens = make_tokens(spec, length)
    times = [take_step(model, call, tokens, spec.device)[0] for _ in range(spec.later)]
    found = [take_step(model, call, tokens, spec.device)[1], *_gradients(model)]
    expected = [take_step(model, model, tokens, spec.device)[1], *_gradients(model)]
    errors = [relative_error(one, other) for one, other in zip(found, expected, strict=True)]
    return {"length": length, "step_ms": 1e3 * median(times), "error": max(errors)}


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the relative error of what was found, in the L2 norm."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))


class Compiled:
    """A model as one way has it.

    Args:
        way: it.
        backend: what compiles Thunder's regions, or of torch.compile whether kernels are generated.
        model: a module or a function.
    """

    def __init__(self, way: Way, backend: str, model: Any):
        self._transform: fusioncache.FusionCache | None = None
        self._counter = Counter()
        self._functions: list[Any] = []
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        if way.compiler == "torch.compile":
            whole = "aot_eager" if backend == "eager" else "inductor"
            self.call: Call = torch.compile(model, backend=whole, dynamic=way.dynamic or None)
        else:
            self.call = self._with_thunder(way, backend, model)
        if way.pads:
            self.call = pad_to_powers_of_two(self.call)

    def _with_thunder(self, way: Way, backend: str, model: Any) -> Call:
        from thunder.dynamo import thunderfx

        if way.shares:
            self._transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False), backend=backend)
        else:
            self._counter = count_compiles(backend, lru=False)
        options = {"executors": executors(backend), "transforms": [self._transform] if self._transform else []}
        if way.compiler == "thunderfx":
            compiled = thunderfx(model, dynamic=way.dynamic or None, **options)
            self._functions = compiled._backend.subgraph_infos
            return compiled
        compiled = thunder.jit(model, **options)
        self._functions = [compiled]
        return compiled

    def counts(self) -> dict[str, int]:
        """Returns how often anything was compiled and how often anything was traced, so far."""
        if self._transform is None and not self._functions:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            return {"compiles": graphs, "traces": graphs}
        stats = self._transform.stats() if self._transform else None
        return {"compiles": stats.compiles if stats else self._counter.compiles, "traces": self._count_traces()}

    def _count_traces(self) -> int:
        functions = [
            function
            for each in self._functions
            for function in (getattr(each, "thunder_compiled_fns", None) or ([] if _is_graph(each) else [each]))
        ]
        return sum(thunder.compile_stats(function).cache_misses for function in functions)


def _is_graph(found: Any) -> bool:
    return hasattr(found, "thunder_compiled_fns")


def pad_to_powers_of_two(call: Call) -> Call:
    """Lets a call have tokens of the next power of two, and gives back as much as was asked for."""

    def padded(tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        whole = 1 << (length - 1).bit_length()
        return call(nn.functional.pad(tokens, (0, whole - length)))[:, :length]

    return padded


if __name__ == "__main__":
    serve(measure)
