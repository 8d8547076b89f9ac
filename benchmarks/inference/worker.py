"""One way of generating text, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.common.compiled import Compiled, relative_error
from benchmarks.common.counting import use_backend
from benchmarks.common.models import narrow_widths
from benchmarks.common.processes import serve
from benchmarks.common.steps import synchronize, warm_up
from benchmarks.common.tensors import digest_all
from benchmarks.common.turns import turn
from benchmarks.inference.generation import Generation, Places
from benchmarks.inference.spec import CHECKED, WAYS, InferenceSpec

_SEED, _MODEL = 2916, "Llama-2-7b-hf"


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns seconds and counts of the first two tokens of each prompt, what later ones take, and what they are."""
    spec = InferenceSpec(**{**options, "prompts": tuple(options["prompts"])})
    if spec.device == "cpu":
        torch.set_num_threads(1)
    use_backend(spec.backend)
    warm_up(lambda function: Compiled(WAYS[spec.way], spec.backend, function).call, spec.device, spec.dtype, grad=False)
    model = make_model(spec)
    compiled = Compiled(WAYS[spec.way], spec.backend, model)
    with _grad_mode(spec):
        subject = Subject(compiled, Places(spec.device))
        prompts = [_begin(spec, subject, length) for length in spec.prompts]
        before = compiled.counts()
        with turn():
            later = [_continue(spec, subject, length) for length in spec.prompts]
            host = _measure_host(spec, subject)
        counts = _subtract(compiled.counts(), before)
        check = _check(spec, model, subject)
    return {"prompts": prompts, "later": later, "later_counts": counts, "host_ms": host, **check, **compiled.graphs()}


@dataclass(frozen=True, slots=True)
class Subject:
    """What generates text.

    Attributes:
        compiled: the model as a way has it.
        places: where tokens lie.
    """

    compiled: Compiled
    places: Places

    def generate(self, spec: InferenceSpec, length: int, **options: Any) -> Generation:
        """Begins to generate behind the prompt of a length."""
        return Generation(self.compiled.call, make_prompt(spec, length), self.places, **options)


@contextmanager
def _grad_mode(spec: InferenceSpec) -> Iterator[None]:
    with torch.inference_mode() if spec.grad_mode == "inference_mode" else torch.no_grad():
        yield


def make_model(spec: InferenceSpec) -> nn.Module:
    """Returns litgpt's Llama with an empty key-value cache for one row of tokens, from a fixed seed."""
    from litgpt import GPT, Config

    torch.manual_seed(_SEED)
    widths = narrow_widths(_MODEL, spec.device) if spec.width == "narrow" else {}
    config = Config.from_name(_MODEL, n_layer=spec.layers, block_size=spec.cache_length, **widths)
    dtype = getattr(torch, spec.dtype)
    with torch.device(spec.device):
        model = GPT(config).to(dtype).eval()
        model.set_kv_cache(batch_size=1, dtype=dtype)
    return model


def make_prompt(spec: InferenceSpec, length: int) -> torch.Tensor:
    """Returns a prompt of shape (length,), the same one for one length in every process."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 512, (length,), generator=generator).to(spec.device)


def _begin(spec: InferenceSpec, subject: Subject, length: int) -> dict[str, Any]:
    """Returns the seconds of the first and the second token behind a prompt, and what was compiled and traced."""
    before = subject.compiled.counts()
    generation = subject.generate(spec, length)
    seconds = [_time(spec, generation.take) for _ in range(2)]
    return {"length": length, "first": seconds[0], "second": seconds[1], **_subtract(subject.compiled.counts(), before)}


def _continue(spec: InferenceSpec, subject: Subject, length: int) -> dict[str, Any]:
    """Returns seconds of a first token, tokens a second behind it, all tokens, and bytes of a GPU's memory."""
    if spec.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    runs = [_generate(spec, subject, length) for _ in range(spec.repeat)]
    peak = torch.cuda.max_memory_allocated() if spec.device == "cuda" else None
    first, others = (median(seconds) for seconds in zip(*(run[:2] for run in runs), strict=True))
    found = {"length": length, "first": first, "tokens_per_second": (spec.tokens - 1) / others}
    return {**found, "tokens": torch.cat(runs[-1][2]).tolist(), "peak_bytes": peak}


def _generate(spec: InferenceSpec, subject: Subject, length: int) -> tuple[float, float, list[torch.Tensor]]:
    """Returns the seconds of a first token, those of all others, and the tokens."""
    generation, tokens = subject.generate(spec, length), list[torch.Tensor]()
    first = _time(spec, lambda: tokens.append(generation.take()))
    return first, _time(spec, lambda: tokens.extend(generation.take_many(spec.tokens - 1))), tokens


def _check(spec: InferenceSpec, model: nn.Module, subject: Subject) -> dict[str, Any]:
    """Returns a digest of the logits of a few tokens, and how far they are from the model's own for the same tokens."""
    prompt, logits = make_prompt(spec, spec.prompts[0]), list[torch.Tensor]()
    found = torch.cat(
        list(
            subject.generate(spec, spec.prompts[0], observe=lambda each: logits.append(each.clone())).take_many(CHECKED)
        )
    )
    positions = torch.arange(prompt.numel(), device=prompt.device)
    errors = [relative_error(logits[0], model(prompt.view(1, -1), positions))]
    for place, (token, ours) in enumerate(zip(found, logits[1:], strict=False)):
        expected = model(token.view(1, 1), positions[-1:] + 1 + place)
        errors.append(relative_error(ours, expected))
    named = {str(number): each for number, each in enumerate(logits)}
    return {"digest": digest_all(named), "error": max(errors)}


def _measure_host(spec: InferenceSpec, subject: Subject) -> float:
    """Returns milliseconds until a later token's forward pass is launched on a device that has nothing else to do."""
    generation, times = subject.generate(spec, spec.prompts[0]), []
    generation.take()
    for _ in range(spec.tokens - 1):
        synchronize(spec.device)
        start = time.perf_counter()
        generation.take()
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)


def _time(spec: InferenceSpec, work: Callable[[], object]) -> float:
    synchronize(spec.device)
    start = time.perf_counter()
    work()
    synchronize(spec.device)
    return time.perf_counter() - start


def _subtract(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in now.items()}


if __name__ == "__main__":
    serve(measure)
