"""Measures greedy generation with a key-value cache, beside eager PyTorch, torch.compile and Thunder.

Each way is a fresh process with empty cache directories. In each, litgpt's Llama generates ``--tokens`` tokens after
prompts of ``--prompts`` tokens, one at a time, as litgpt's ``generate`` does at temperature 0. The first two tokens
after each prompt are timed one by one, with counts of compilations and traces. Then everything is repeated ``--repeat``
times. The time of a first token, and the tokens per second after it without synchronization, are medians over these
repetitions. Host time is that of one token on an idle device. The tokens are compared with those of eager, and the bits
of the logits of a few tokens with Thunder's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import click
import torch
from torch import nn

from benchmarks.common.compiled import Compiled, subtract, time_call, warm_up
from benchmarks.common.errors import relative_error
from benchmarks.common.models import LLAMA, WIDTHS, Place, make_litgpt
from benchmarks.common.options import (
    Numbers,
    Words,
    count_option,
    layers_option,
    limit_option,
)
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Point, Run, benchmark, pick
from benchmarks.common.steps import synchronize
from benchmarks.common.tensors import digest_all
from benchmarks.common.ways import WAYS, choose_ways

_NAMES = ("eager", "torch.compile", "reduce-overhead", "thunder", "fusioncache", "graphs", "cudnn", "cudnn graphs")
_CHECKED = 8
"""Number of tokens after the first prompt whose logits are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSpec(Place):
    """Specification of one process.

    Attributes:
        way: its name.
        width: ``"narrow"`` or ``"real"``: of Llama-2-7b.
        layers: of the model.
        prompts: lengths of the prompts, in order.
        tokens: number of tokens generated after each prompt.
        repeat: number of repetitions after everything is compiled, for the median.
    """

    way: str
    width: str
    layers: int
    prompts: tuple[int, ...]
    tokens: int
    repeat: int

    @property
    def cache_length(self) -> int:
        """Number of tokens that fit into the key-value cache: a power of two."""
        return 1 << (max(self.prompts) + self.tokens - 1).bit_length()


class Generation:
    """The tokens after one prompt, generated on demand: the core loop of litgpt's ``generate``.

    All tokens and positions are written to the same memory, where a captured CUDA graph reads them. The filled length
    of the cache is not passed as a number, ``input_pos_maxp1``: litgpt omits it for Thunder, which would make another
    program for each token.

    Args:
        forward: the model, eager or compiled: takes tokens and their positions, and returns logits.
        prompt: tokens of shape (length,).
        places: tensors for a token, of shape (1, 1), and its position, of shape (1,), which are overwritten.
        observe: called with the logits of each token.
    """

    def __init__(
        self,
        forward: Callable[..., torch.Tensor],
        prompt: torch.Tensor,
        places: tuple[torch.Tensor, torch.Tensor],
        observe: Callable[[torch.Tensor], object] = lambda logits: None,
    ):
        self._forward = forward
        self._observe = observe
        self._prompt: torch.Tensor | None = prompt
        self._token, self._position = places

    def take(self) -> torch.Tensor:
        """Returns the next token, of shape (1,), on the device of the prompt. Does not wait for the device."""
        torch.compiler.cudagraph_mark_step_begin()
        prompt = self._prompt
        if prompt is None:
            logits = self._forward(self._token, self._position)
            self._position.add_(1)
        else:
            logits = self._forward(prompt.view(1, -1), torch.arange(prompt.numel(), device=prompt.device))
            self._position.fill_(prompt.numel())
            self._prompt = None
        self._observe(logits)
        token = torch.argmax(logits[0, -1], dim=-1, keepdim=True)
        self._token.copy_(token.view(1, 1))
        return token

    def take_many(self, count: int) -> Iterator[torch.Tensor]:
        """Yields the next ``count`` tokens."""
        for _ in range(count):
            yield self.take()


@dataclass(frozen=True, slots=True)
class Subject:
    """A compiled model that generates text.

    Attributes:
        spec: of the measurement.
        compiled: the model, compiled in one way.
        places: tensors for a token and its position.
    """

    spec: InferenceSpec
    compiled: Compiled
    places: tuple[torch.Tensor, torch.Tensor]

    def generate(self, length: int, **options: Any) -> Generation:
        """Returns a generation after the prompt of this length."""
        return Generation(self.compiled.call, make_prompt(self.spec, length), self.places, **options)


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns seconds and counts for the first two tokens of each prompt, times of later ones, and the tokens."""
    spec = InferenceSpec.read(options)
    if spec.device == "cpu":
        torch.set_num_threads(1)
    warm_up(WAYS[spec.way], spec.backend, spec.device, spec.dtype, grad=False)
    model = make_model(spec)
    compiled = Compiled(WAYS[spec.way], spec.backend, model)
    with torch.inference_mode():
        places = (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        subject = Subject(spec, compiled, (places[0].to(spec.device), places[1].to(spec.device)))
        prompts = [_begin(subject, length) for length in spec.prompts]
        before = compiled.counts()
        later = [_continue(subject, length) for length in spec.prompts]
        host = _measure_host(subject)
        counts = subtract(compiled.counts(), before)
        check = _check(model, subject)
    return {"prompts": prompts, "later": later, "later_counts": counts, "host_ms": host, **check, **compiled.graphs()}


def make_model(spec: InferenceSpec) -> nn.Module:
    """Returns litgpt's Llama with an empty key-value cache for one row of tokens, from a fixed seed."""
    place = (spec.layers, spec.device, spec.dtype)
    model = make_litgpt(LLAMA, *place, width=spec.width, block_size=spec.cache_length).eval()
    with torch.device(spec.device):
        model.set_kv_cache(batch_size=1, dtype=getattr(torch, spec.dtype))
    return model


def make_prompt(spec: InferenceSpec, length: int) -> torch.Tensor:
    """Returns a prompt of shape (length,), the same in every process."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 512, (length,), generator=generator).to(spec.device)


def _begin(subject: Subject, length: int) -> dict[str, Any]:
    """Returns the seconds of the first and the second token after a prompt, and counts of compilations and traces."""
    before = subject.compiled.counts()
    generation = subject.generate(length)
    first, second = (time_call(generation.take, subject.spec.device) for _ in range(2))
    return {"length": length, "first": first, "second": second, **subtract(subject.compiled.counts(), before)}


def _continue(subject: Subject, length: int) -> dict[str, Any]:
    """Returns the seconds of a first token, tokens per second after it, all tokens, and peak bytes of GPU memory."""
    spec = subject.spec
    if spec.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    runs = [_generate(subject, length) for _ in range(spec.repeat)]
    peak = torch.cuda.max_memory_allocated() if spec.device == "cuda" else None
    first, others = (median(seconds) for seconds in zip(*(run[:2] for run in runs), strict=True))
    found = {"length": length, "first": first, "tokens_per_second": (spec.tokens - 1) / others}
    return {**found, "tokens": torch.cat(runs[-1][2]).tolist(), "peak_bytes": peak}


def _generate(subject: Subject, length: int) -> tuple[float, float, list[torch.Tensor]]:
    """Returns the seconds of the first token, the seconds of all others, and the tokens."""
    generation, tokens, device = subject.generate(length), list[torch.Tensor](), subject.spec.device
    first = time_call(lambda: tokens.append(generation.take()), device)
    return first, time_call(lambda: tokens.extend(generation.take_many(subject.spec.tokens - 1)), device), tokens


def _check(model: nn.Module, subject: Subject) -> dict[str, Any]:
    """Returns a digest of the logits of a few tokens, and their largest error relative to the eager model."""
    first = subject.spec.prompts[0]
    prompt, logits = make_prompt(subject.spec, first), list[torch.Tensor]()
    generation = subject.generate(first, observe=lambda each: logits.append(each.clone()))
    found = torch.cat(list(generation.take_many(_CHECKED)))
    positions = torch.arange(prompt.numel(), device=prompt.device)
    errors = [relative_error(logits[0], model(prompt.view(1, -1), positions))]
    for place, (token, ours) in enumerate(zip(found, logits[1:], strict=False)):
        expected = model(token.view(1, 1), positions[-1:] + 1 + place)
        errors.append(relative_error(ours, expected))
    named = {str(number): each for number, each in enumerate(logits)}
    return {"digest": digest_all(named), "distance": max(errors)}


def _measure_host(subject: Subject) -> float:
    """Returns the milliseconds until a later token's forward pass is launched on an idle device."""
    generation, times = subject.generate(subject.spec.prompts[0]), []
    generation.take()
    for _ in range(subject.spec.tokens - 1):
        synchronize(subject.spec.device)
        start = time.perf_counter()
        generation.take()
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)


@benchmark(__doc__, needs_litgpt=True)
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="Of Llama-2-7b.")
@layers_option(8)
@click.option("--prompts", type=Numbers(), default=(128, 96, 65, 200, 47), help="As in 64,96,65.")
@count_option("--tokens", 100, "Tokens behind each prompt.", least=10)
@count_option("--repeat", 5, "How often all is done once it is compiled.")
@click.option("--ways", type=Words(_NAMES), default=_NAMES, help="As in eager,fusioncache.")
@limit_option
def main(run: Run, ways: tuple[str, ...], **options: Any) -> None:
    """Runs the benchmark."""
    common = {**run.machine.place(), **options}
    for way in choose_ways(ways, run.machine.device):
        spec = InferenceSpec(way=way.name, **common)
        run.add(run.measure({"way": way.name}, "benchmarks.inference:measure", asdict(spec)))
        if "error" not in run.points[-1]:
            print_progress(f"{way.name}: {run.points[-1]['later'][0]['tokens_per_second']:.1f} tokens a second\n")
    good = {point["way"]: point for point in run.points if "error" not in point}
    columns = {
        "<way": pick("way"),
        **{f"first, {length}": _pick_prompt(place) for place, length in enumerate(options["prompts"])},
        "later 1st, ms": lambda point: f"{1e3 * point['later'][0]['first']:.2f}",
        "tokens/s": lambda point: f"{point['later'][0]['tokens_per_second']:.0f}",
        "host ms": pick("host_ms"),
        **{name: _count(name) for name in ("compiles", "traces")},
        "as eager": lambda point: _count_alike(point, good["eager"]) if "eager" in good else "",
        "as Thunder": lambda point: point["digest"] == good["thunder"]["digest"] if "thunder" in good else "",
    }
    caption = "seconds of first tokens; compiles and traces behind the second prompt; tokens that eager generates"
    run.finish("generating text", columns, caption)


def _pick_prompt(place: int) -> Callable[[Point], str]:
    return lambda point: f"{point['prompts'][place]['first']:.2f}"


def _count(name: str) -> Callable[[Point], str]:
    return lambda point: str(sum(each[name] for each in point["prompts"][2:]) + point["later_counts"][name])


def _count_alike(point: Point, eager: Point) -> str:
    """Returns how many of all tokens equal those of eager, up to the first difference after each prompt."""
    alike = total = 0
    for one, other in zip(point["later"], eager["later"], strict=True):
        pairs: Sequence[tuple[int, int]] = list(zip(one["tokens"], other["tokens"], strict=True))
        total += len(pairs)
        alike += next((place for place, (left, right) in enumerate(pairs) if left != right), len(pairs))
    return f"{alike}/{total}"


if __name__ == "__main__":
    main()
