"""Tokens a second of greedy generation with a key-value cache, beside eager PyTorch, torch.compile and Thunder.

Each way is a fresh process with empty cache directories; ``--at-once`` of these get ready beside each other, and then
measure one after the other, with nothing beside them. In each litgpt's Llama generates ``--tokens`` tokens behind
prompts of ``--prompts`` tokens, one at a time, as litgpt's ``generate`` does at temperature 0. The first tokens behind
each prompt are timed as they come, with what was compiled and traced for them; then all is done ``--repeat`` times
more: the time of a first token, and tokens a second behind it, none of which is waited for, are medians of these. Host
time is that of one token on a device that has nothing else to do. What was generated is compared with what eager
generates, and the bits of the logits of a few tokens with Thunder's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Lengths, Words, backend_option, command, json_option, require_litgpt
from benchmarks.common.processes import ProcessFailed
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.turns import call_in_turns
from benchmarks.inference.spec import EAGER, GPU_WAYS, WAYS, InferenceSpec


@command(__doc__)
@click.option("--width", type=click.Choice(["narrow", "real"]), default="narrow", help="Of Llama-2-7b.")
@click.option("--layers", type=click.IntRange(min=1), default=8)
@click.option("--prompts", type=Lengths(), default=(128, 96, 65, 200, 47), help="As in 64,96,65.")
@click.option("--tokens", type=click.IntRange(min=10), default=100, help="Tokens behind each prompt.")
@click.option("--repeat", type=click.IntRange(min=1), default=5)
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in eager,fusioncache.")
@click.option("--grad-mode", type=click.Choice(["inference_mode", "no_grad"]), default="inference_mode")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="bfloat16 on a GPU, else float32.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="A GPU, if there is one.")
@click.option("--at-once", type=click.IntRange(min=1), default=1, help="Processes that get ready beside each other.")
@click.option("--limit", type=click.FloatRange(min=1.0), help="Seconds that each may take, waiting among them.")
@backend_option()
@json_option
def main(
    json_file: Path | None,
    ways: Sequence[str],
    at_once: int,
    limit: float | None,
    backend: str,
    dtype: str | None,
    device: str | None,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    require_litgpt("Llama")
    machine = inspect_machine("inductor" if device == "cpu" and backend == "auto" else backend)
    place = device or machine.device
    common = {"backend": machine.backend, "device": place, **options}
    common["dtype"] = dtype or (machine.choose_dtype("llama") if place == machine.device else "float32")
    chosen = [way for way in ways if place == "cuda" or way not in GPU_WAYS]
    specs = [InferenceSpec(way=way, **common) for way in chosen]
    points: list[Point] = []
    answers = call_in_turns("benchmarks.inference.worker", [asdict(spec) for spec in specs], at_once, limit)
    for way, answer in zip(chosen, answers, strict=True):
        points.append(_make_point(way, answer))
        result = make_result(machine.environment, {**common, "ways": chosen, "at_once": at_once}, points=points)
        write_result(json_file, result)
    _print(points)
    sys.exit(1 if any("failure" in point for point in points) else 0)


def _make_point(way: str, answer: Any) -> Point:
    """Returns what one way's process said; what went wrong if it said nothing."""
    if isinstance(answer, ProcessFailed):
        say(f"{way}: {answer.message}\n")
        return {"way": way, "failure": answer.message, "log": answer.log}
    say(f"{way}: {answer['later'][0]['tokens_per_second']:.1f} tokens a second\n")
    return {"way": way, **answer}


def _print(points: Sequence[Point]) -> None:
    good = {point["way"]: point for point in points if "failure" not in point}
    lengths = [each["length"] for each in next(iter(good.values()))["prompts"]] if good else []
    columns = (
        "<way",
        *(f"first, {length}" for length in lengths),
        "2nd token",
        "later 1st, ms",
        "tokens/s",
        "host ms",
        "GiB",
        "compiles",
        "traces",
        "as eager",
        "as Thunder",
    )
    rows = [_row(point, good) for point in good.values()]
    caption = "seconds of first tokens; compiles and traces behind the second prompt; tokens that eager generates"
    console().print(make_table("generating text", caption, columns, rows))
    for point in points:
        if "failure" in point:
            click.echo(f"{point['way']}: {point['failure']}")


def _row(point: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> list[str]:
    prompts, later = point["prompts"], point["later"][0]
    counts = [sum(each[name] for each in prompts[2:]) + point["later_counts"][name] for name in ("compiles", "traces")]
    thunder = others.get("thunder")
    return [
        point["way"],
        *(f"{each['first']:.2f}" for each in prompts),
        f"{prompts[0]['second']:.2f}",
        f"{1e3 * later['first']:.2f}",
        f"{later['tokens_per_second']:.0f}",
        f"{point['host_ms']:.2f}",
        "" if later["peak_bytes"] is None else f"{later['peak_bytes'] / 2**30:.2f}",
        *map(str, counts),
        _count_alike(point, others[EAGER]) if EAGER in others else "",
        ("yes" if point["digest"] == thunder["digest"] else "no") if thunder else "",
    ]


def _count_alike(point: Mapping[str, Any], eager: Mapping[str, Any]) -> str:
    """Returns how many of all tokens come as they do in eager, up to the first of each prompt that does not."""
    alike = total = 0
    for one, other in zip(point["later"], eager["later"], strict=True):
        pairs = list(zip(one["tokens"], other["tokens"], strict=True))
        total += len(pairs)
        alike += next((place for place, (left, right) in enumerate(pairs) if left != right), len(pairs))
    return f"{alike}/{total}"


if __name__ == "__main__":
    main()
