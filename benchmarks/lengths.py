"""Measures steps at a sequence of lengths, or with changing routing, beside torch.compile, Thunder and padding.

Each way is a fresh process with empty cache directories. In it, a model takes a training step at each of ``--lengths``,
then at ``--random`` lengths drawn from the range ``--between``, each on other tokens. Every step is timed, and its
compilations and traces are counted (for torch.compile both are the graphs of Dynamo). At the end the first lengths are
repeated, for the time of a later step and for the error against eager torch.

With ``--multiples 1,64`` each way runs twice: once with the lengths as they are, and once with each rounded up to a
multiple of 64, as a bucketed data loader pads. The seconds lost to new lengths are the excess of each length's first
step over the median step. The seconds lost to padding are the padded share of a median step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import product
from statistics import mean, median
from types import MappingProxyType
from typing import Any

import click
import torch
from torch import nn

from benchmarks.common.compiled import Compiled, subtract, warm_up
from benchmarks.common.errors import find_worst
from benchmarks.common.models import LLAMA, SEED, WIDTHS, Place, draw_tokens, make_litgpt
from benchmarks.common.options import (
    Numbers,
    Words,
    count_option,
    layers_option,
    limit_option,
)
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Point, Run, benchmark, pick
from benchmarks.common.steps import Call, take_step
from benchmarks.common.ways import WAYS
from benchmarks.zoo import token_models

_LITGPT: Mapping[str, str] = MappingProxyType({"llama": LLAMA, "mixtral": "Mixtral-8x7B-v0.1"})
GPT_2 = "gpt2"
"""Hugging Face's GPT-2, which needs transformers, through ``thunderfx``."""
MODELS = (*_LITGPT, *token_models.MODELS, GPT_2)
_WAYS = ("fusioncache", "torch.compile")
_SEED = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsSpec(Place):
    """Specification of one process.

    Attributes:
        way: its name.
        model: one of ``MODELS``.
        layers: of the model.
        width: of a model of litgpt: ``"narrow"``, or ``"real"`` for the configuration's.
        lengths: of the steps, in order.
        later: number of additional steps at each of the first ``again`` distinct lengths, which measure the time of a
            later step.
        again: see ``later``.
        batch: rows of tokens.
        seconds: after which no further step begins; None for no limit.
    """

    way: str
    model: str
    layers: int
    lengths: tuple[int, ...]
    later: int
    again: int
    batch: int
    width: str = "narrow"
    seconds: float | None = None


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds and the counts of each step, and times and errors of later steps."""
    spec = LengthsSpec.read(options)
    way = WAYS[spec.way]
    if spec.model == GPT_2 and way.compiler == "thunder.jit":
        way = replace(way, compiler="thunderfx")
    warm_up(way, spec.backend, spec.device, spec.dtype)
    model = make_model(spec)
    named: dict[str, Any] = {"lengths": sorted(set(spec.lengths))} if way.names_lengths else {}
    compiled = Compiled(way, spec.backend, model, **named)
    begun, steps = time.perf_counter(), []
    for number, length in enumerate(spec.lengths):
        before = compiled.counts()
        seconds, _ = take_step(model, compiled.call, make_inputs(spec, length, number), spec.device)
        steps.append({"length": length, "seconds": seconds, **subtract(compiled.counts(), before)})
        if spec.seconds and time.perf_counter() - begun > spec.seconds:
            break
    again = tuple(dict.fromkeys(spec.lengths))[: spec.again]
    return {"steps": steps, "later": [time_later(spec, model, compiled.call, length) for length in again]}


def make_model(spec: LengthsSpec) -> nn.Module:
    """Returns a model that takes tokens, from a fixed seed."""
    block = 1 << (max(spec.lengths) - 1).bit_length()  # padded inputs must fit, too
    if spec.model in _LITGPT:
        narrow = {"block_size": block} if spec.width == "narrow" else {}
        model: nn.Module = make_litgpt(
            _LITGPT[spec.model], spec.layers, spec.device, spec.dtype, width=spec.width, **narrow
        )
        return model
    torch.manual_seed(SEED)
    if spec.model == GPT_2:
        from benchmarks.zoo.huggingface_models import make_gpt2

        model = make_gpt2(spec.layers, block, spec.device)
    else:
        model = token_models.MODELS[spec.model](spec.layers)
    return model.to(spec.device, getattr(torch, spec.dtype))


def make_inputs(spec: LengthsSpec, length: int, number: int) -> torch.Tensor:
    """Returns the tokens of a step, the same in every process. They are in the vocabulary of every model."""
    return draw_tokens(token_models.VOCABULARY, (spec.batch, length), spec.device, 1000 * number + length)


def time_later(spec: LengthsSpec, model: nn.Module, call: Call, length: int) -> dict[str, float]:
    """Returns the times of later steps of a length, and the worst relative L2 error there, gradients included."""
    tokens = make_inputs(spec, length, 0)
    times = [take_step(model, call, tokens, spec.device)[0] for _ in range(spec.later)]
    found = [take_step(model, call, tokens, spec.device)[1], *_list_gradients(model)]
    expected = [take_step(model, model, tokens, spec.device)[1], *_list_gradients(model)]
    taken = {"step_ms": 1e3 * median(times), "slowest_ms": 1e3 * max(times)}
    return {"length": length, **taken, "error": find_worst(found, expected)}


def _list_gradients(model: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros(1) if one.grad is None else one.grad for one in model.parameters()]


def sequence_options(*, layers: int, lengths: Sequence[int], random: int, later: int) -> Callable[..., Any]:
    """Adds the options for the model, its steps and the ways, with these defaults."""
    options = (
        click.option("--model", type=click.Choice(MODELS), default="llama"),
        layers_option(layers),
        click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="Of a model of litgpt."),
        click.option("--lengths", type=Numbers(), default=lengths, help="As in 64,96,65,200."),
        count_option("--random", random, "How many more are drawn.", least=0),
        click.option("--between", type=(int, int), default=(32, 512), help="The least and the largest of these."),
        click.option("--ways", type=Words(tuple(WAYS)), default=_WAYS, help="As in fusioncache,torch.compile."),
        count_option("--batch", 2, "Rows of tokens."),
        count_option("--later", later, "Steps that the time of a later step is of."),
        limit_option,
    )
    return lambda main: reduce(lambda made, option: option(made), reversed(options), main)


@benchmark(__doc__, needs_litgpt=True)
@sequence_options(layers=4, lengths=(64, 96, 65, 200, 128, 257, 1, 8), random=200, later=10)
@click.option("--multiples", type=Numbers(), default=(1,), help="That lengths are rounded up to, as in 1,64.")
@click.option("--seconds", type=click.FloatRange(min=1.0), help="Of each way, after which no other step begins.")
def main(
    run: Run,
    lengths: Sequence[int],
    random: int,
    between: tuple[int, int],
    multiples: Sequence[int],
    ways: Sequence[str],
    **options: Any,
) -> None:
    """Runs the benchmark."""
    if not 0 < between[0] <= between[1]:
        raise click.BadParameter(f"{between[0]} {between[1]} is no range of lengths", param_hint="--between")
    common = {**run.machine.place(), **options}
    whole = (*lengths, *_draw(random, between))
    for way, multiple in product(ways, multiples):
        rounded = tuple(-(-length // multiple) * multiple for length in whole)
        spec = LengthsSpec(way=way, lengths=rounded, again=len(lengths), **common)
        environment, labels = WAYS[way].environment, {"way": way, "multiple": multiple}
        point = run.measure(labels, "benchmarks.lengths:measure", asdict(spec), environment=environment)
        steps = point.get("steps", ())
        run.add({**point, "lost": find_lost(steps, whole)})
        print_progress(f"{way}, {multiple}: {sum(step['seconds'] for step in steps):.1f} s for {len(steps)} steps\n")
    columns = {
        "<way": pick("way"),
        "multiple": pick("multiple"),
        **{f"{length}": _pick_step(number) for number, length in enumerate(lengths)},
        "median of the others": lambda point: _summarize(point, len(lengths), median),
        "slowest": lambda point: _summarize(point, len(lengths), max),
        **{name: _count(name) for name in ("compiles", "traces")},
        **{f"lost to {what}": _pick_lost(what) for what in ("new lengths", "padding")},
        "later step, ms": lambda point: f"{mean(each['step_ms'] for each in point['later']):.2f}",
        "slowest later step, ms": lambda point: f"{max(each['slowest_ms'] for each in point['later']):.2f}",
        "worst error": lambda point: f"{max(each['error'] for each in point['later']):.1e}",
    }
    caption = "seconds of the first step of each length, in this order; compiles and traces from the third on"
    run.finish("steps at many lengths", columns, caption)


def find_lost(steps: Sequence[Mapping[str, Any]], wanted: Sequence[int]) -> dict[str, float]:
    """Returns the seconds lost to first steps of new lengths and to padding.

    Args:
        steps: each with its length and seconds.
        wanted: the lengths before they were rounded up.
    """
    usual = median(step["seconds"] for step in steps) if steps else 0.0
    first = {step["length"]: step["seconds"] for step in reversed(steps)}
    padded = sum(1 - length / step["length"] for step, length in zip(steps, wanted, strict=False))
    return {"new lengths": sum(max(seconds - usual, 0.0) for seconds in first.values()), "padding": padded * usual}


def _pick_lost(what: str) -> Any:
    return lambda point: f"{point['lost'][what]:.1f}"


def _draw(count: int, between: tuple[int, int]) -> list[int]:
    drawn = random.Random(_SEED)
    return [drawn.randint(*between) for _ in range(count)]


def _pick_step(number: int) -> Any:
    return lambda point: f"{point['steps'][number]['seconds']:.3f}" if number < len(point["steps"]) else ""


def _summarize(point: Point, first: int, how: Any) -> str:
    others = [step["seconds"] for step in point["steps"][first:]]
    return f"{how(others):.3f}" if others else ""


def _count(name: str) -> Any:
    return lambda point: str(sum(step[name] for step in point["steps"][2:]))


if __name__ == "__main__":
    main()
