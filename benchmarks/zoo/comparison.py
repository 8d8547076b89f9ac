"""What comparisons over the zoo have in common: options, a point for each model at each depth, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from benchmarks.common.environment import Machine
from benchmarks.common.options import Numbers, Words, backend_option
from benchmarks.common.processes import ProcessFailed
from benchmarks.common.report import print_line
from benchmarks.common.results import Point, say
from benchmarks.zoo.catalogue import names
from benchmarks.zoo.spec import ZooSpec

_DTYPES = ("float32", "bfloat16", "float16")


def zoo_options(layers: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options that say which models are compared, at which depths, and how: these ones by default."""
    options = (
        click.option("--models", type=Words(names()), help="As in llama-3,hf-bert.  [default: all]"),
        click.option(
            "--layers", type=Numbers(real=True), default=layers, help="As in 2,4,real; real: as many as it really has."
        ),
        backend_option(),
        click.option("--dtype", type=click.Choice(_DTYPES), help="[default: bfloat16 with a GPU]"),
        click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes at a time."),
    )

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def list_specs[Spec: ZooSpec](
    make: Callable[..., Spec], machine: Machine, options: Mapping[str, Any], **more: Any
) -> Iterator[Spec]:
    """Returns what is compared: each model, at each of the depths.

    Args:
        make: makes a spec of its fields, by their names.
        machine: where it is compared.
        options: those of ``zoo_options``, by their names.
        more: the fields that a spec has beside those of ``ZooSpec``.
    """
    for model in options["models"] or names():
        dtype = options["dtype"] or machine.choose_dtype(model)
        for layers in options["layers"]:
            yield make(model=model, layers=layers, backend=machine.backend, device=machine.device, dtype=dtype, **more)


def compare_all[Spec: ZooSpec](
    specs: Sequence[Spec], compare: Callable[[Spec], Point], jobs: int
) -> Iterator[list[Point]]:
    """Compares up to ``jobs`` at a time, and yields after each all points so far, in the order of the specs.

    Args:
        specs: what is compared.
        compare: compares one in processes of its own, and returns what was found. If one of these fails, its point has
            the fields of the spec, and ``error``.
        jobs: how many at a time.
    """
    found: dict[Spec, Point] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_compare, spec, compare): spec for spec in specs}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            yield [found[spec] for spec in specs if spec in found]


def _compare[Spec: ZooSpec](spec: Spec, compare: Callable[[Spec], Point]) -> Point:
    try:
        return compare(spec)
    except ProcessFailed as failure:
        say(f"{spec}: failed, {failure.format_message()}\n")
        return asdict(spec) | {"error": str(failure)}


def name_point(point: Point) -> list[str]:
    """Returns the cells with which the row of a point begins: the model, and how deep it is."""
    return [point["model"], "real" if point["layers"] is None else str(point["layers"])]


def print_error(out: Console, point: Point) -> None:
    """Prints what is wrong with a point, if anything is."""
    if "error" in point:
        model, depth = name_point(point)
        print_line(out, f"error: {model}, {depth} layers: {point['error']}")
