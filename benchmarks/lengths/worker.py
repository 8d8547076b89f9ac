"""One way through all lengths, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.common.compiled import Call, Compiled, relative_error, take_step
from benchmarks.common.counting import use_backend
from benchmarks.common.models import narrow_widths
from benchmarks.common.processes import serve
from benchmarks.common.steps import warm_up
from benchmarks.lengths.spec import WAYS, LengthsSpec

_SEED, _MODEL = 2916, "Llama-2-7b-hf"


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


if __name__ == "__main__":
    serve(measure)
