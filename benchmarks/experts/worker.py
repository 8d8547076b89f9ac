"""One peer's steps, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.common.compiled import Call, Compiled, relative_error, take_step
from benchmarks.common.counting import use_backend
from benchmarks.common.models import narrow_widths
from benchmarks.common.processes import serve
from benchmarks.common.steps import warm_up
from benchmarks.experts.layers import GroupedExperts, LoopedExperts
from benchmarks.experts.spec import PEERS, ExpertsSpec

_SEED, _MODEL = 2362, "Mixtral-8x7B-v0.1"


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds and the counts of each step, and how far the last one is from what torch alone computes."""
    spec = ExpertsSpec(**options)
    way = PEERS[spec.peer].way
    use_backend(spec.backend)
    warm_up(lambda function: Compiled(way, spec.backend, function).call if way else function, spec.device, spec.dtype)
    model = make_model(spec)
    compiled = Compiled(way, spec.backend, model) if way else None
    call = compiled.call if compiled else model
    start, steps = time.perf_counter(), []
    for inputs in make_inputs(spec):
        before = compiled.counts() if compiled else {"compiles": 0, "traces": 0}
        seconds, _ = take_step(model, call, inputs, spec.device)
        after = compiled.counts() if compiled else before
        steps.append({"seconds": seconds, **{name: count - before[name] for name, count in after.items()}})
        if time.perf_counter() - start > spec.seconds:
            break
    return {"steps": steps, "routed": _count_routed(spec, model, inputs), "error": _compare(model, call, inputs, spec)}


def make_model(spec: ExpertsSpec) -> nn.Module:
    """Returns litgpt's Mixtral with narrow widths, or one layer of experts, from a fixed seed."""
    torch.manual_seed(_SEED)
    widths = narrow_widths(_MODEL, spec.device)
    if PEERS[spec.peer].what == "model":
        from litgpt import GPT, Config

        shape = {"n_layer": spec.layers, "n_expert": spec.experts, "block_size": spec.length}
        model: nn.Module = GPT(Config.from_name(_MODEL, **shape, **widths))
    else:
        kind = GroupedExperts if PEERS[spec.peer].what == "grouped" else LoopedExperts
        model = kind(widths["n_embd"], widths["intermediate_size"], spec.experts)
    return model.to(device=spec.device, dtype=getattr(torch, spec.dtype))


def make_inputs(spec: ExpertsSpec) -> Iterator[torch.Tensor]:
    """Yields the inputs of each step, the same ones in each process: tokens' numbers, or tokens."""
    widths = narrow_widths(_MODEL, spec.device)
    generator = torch.Generator().manual_seed(_SEED)
    for _ in range(spec.steps):
        if PEERS[spec.peer].what == "model":
            shape = (spec.batch, spec.length)
            yield torch.randint(0, widths["padded_vocab_size"], shape, generator=generator).to(spec.device)
        else:
            tokens = torch.randn(spec.batch * spec.length, widths["n_embd"], generator=generator)
            yield tokens.to(device=spec.device, dtype=getattr(torch, spec.dtype))


def _count_routed(spec: ExpertsSpec, model: nn.Module, inputs: torch.Tensor) -> list[int]:
    """Returns how many tokens each expert of the first layer got in a step."""
    found: list[torch.Tensor] = []
    router = model.transformer.h[0].mlp.gate if PEERS[spec.peer].what == "model" else model.router
    hook = router.register_forward_hook(lambda module, args, output: found.append(output.detach()))
    with torch.no_grad():
        model(inputs)
    hook.remove()
    chosen = found[0].topk(2, -1).indices.flatten()
    return [int(count) for count in torch.bincount(chosen, minlength=spec.experts)]


def _compare(model: nn.Module, call: Call, inputs: torch.Tensor, spec: ExpertsSpec) -> float:
    """Returns the worst relative error of output and gradients; a token that another expert gets counts in full."""
    found = [take_step(model, call, inputs, spec.device)[1], *_gradients(model)]
    expected = [take_step(model, model, inputs, spec.device)[1], *_gradients(model)]
    return max(relative_error(one, other) for one, other in zip(found, expected, strict=True))


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros(1) if one.grad is None else one.grad for one in model.parameters()]


if __name__ == "__main__":
    serve(measure)
