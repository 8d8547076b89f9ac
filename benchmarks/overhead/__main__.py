"""Host time of one call of a compiled region: the backend's own call, Thunder's, and fusioncache's.

The variants take turns in short rounds, in one process, on small tensors, so that the GPU is never what is waited for.
Each round times blocks of calls between two synchronizations; a variant's figure is the median over all rounds.

- ``execute``: the backend's own call: nvFuser's ``FusionDefinition.execute``, or the function that TorchInductor made.
- ``bare``: what that method of nvFuser calls in turn, ``FusionExecutorCache.execute``.
- ``thunder``: what a trace without fusioncache calls: with nvFuser, Thunder's ``FusionDefinitionWrapper``.
- ``fusioncache``: what a trace with fusioncache calls.
"""

from __future__ import annotations

import inspect
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import click

from benchmarks.common import environment, report
from benchmarks.common.executors import compile_regions_with, executors
from benchmarks.common.options import Layers, NewFile

SCHEMA = 1

Call = Callable[[], Any]


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--inputs", type=Layers(), default="2,4,8", help="Numbers of inputs of the regions.")
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), default="auto")
@click.option("--rounds", type=click.IntRange(min=1), default=50, help="How often each variant is timed.")
@click.option("--calls", type=click.IntRange(min=1), default=200, help="Calls timed at once.")
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
def main(inputs: Sequence[int], backend: str, rounds: int, calls: int, json_file: Path | None) -> None:
    from fusioncache.backends.registry import best_backend

    chosen = best_backend(environment.device()) if backend == "auto" else backend
    problem = environment.backend_problem(chosen)
    if problem:
        raise click.UsageError(f"--backend {backend} does not work here: {problem}")
    compile_regions_with(chosen)
    points = []
    for count in inputs:
        click.echo(f"{count} inputs, {chosen}: ", err=True, nl=False)
        microseconds = measure(variants(count, chosen), rounds, calls)
        added = {name: round(value - microseconds["execute"], 3) for name, value in microseconds.items()}
        points.append({"inputs": count, "backend": chosen, "microseconds": microseconds, "added": added})
        click.echo(", ".join(f"{name} {value:.2f} us" for name, value in microseconds.items()), err=True)
    options = {"inputs": list(inputs), "backend": chosen, "rounds": rounds, "calls": calls}
    result = {"schema": SCHEMA, "environment": environment.describe() | {"options": options}, "points": points}
    if json_file:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    _print(points)


def variants(inputs: int, backend: str) -> Mapping[str, Call]:
    """The ways to call one pointwise region with this many inputs, each called once already."""
    import torch

    import fusioncache

    device = environment.device()
    args = [torch.rand(10, 10, device=device) for _ in range(inputs)]
    uncached, args_of_region = _region(_program(inputs), args, [], backend)
    transform = fusioncache.FusionCache(backend=backend, cache=fusioncache.Cache(record=False))
    cached, args_of_template = _region(_program(inputs), args, [transform], backend)
    if transform.stats().bypasses:
        raise click.ClickException(f"fusioncache left the region as it was: {dict(transform.stats().bypasses)}")
    calls = {} if backend != "nvfuser" else _nvfuser_calls(uncached.last_used, args_of_region)
    if backend != "nvfuser":
        function = inspect.getclosurevars(uncached).nonlocals["function"]
        calls = {"execute": lambda: function(*args_of_region)}
    calls |= {"thunder": lambda: uncached(*args_of_region), "fusioncache": lambda: cached(*args_of_template)}
    _check_agreement(calls)
    return calls


def _nvfuser_calls(definition: Any, args: Sequence[Any]) -> dict[str, Call]:
    execute, bare = definition.execute, definition.fec.execute
    device = definition._get_device_index(definition._selected_device)
    return {
        "execute": lambda: execute(args),
        "bare": lambda: bare(args, device=device, _enable_options=[], _disable_options=[]),
    }


def _program(inputs: int) -> Callable[..., Any]:
    def program(*args: Any) -> Any:
        import torch

        product = torch.tanh(args[0])
        for other in args[1:]:
            product = product * other
        return product

    # Thunder reads the number of arguments off the signature, of which *args says nothing.
    names = ", ".join(f"x{i}" for i in range(inputs))
    return eval(f"lambda {names}: program({names})", {"program": program})


def _region(
    program: Callable[..., Any], args: Sequence[Any], transforms: list[Any], backend: str
) -> tuple[Any, list[Any]]:
    """The function that the trace calls for its one region, and its arguments."""
    import thunder

    compiled = thunder.jit(program, executors=executors(backend), transforms=transforms)
    compiled(*args)
    trace = thunder.last_traces(compiled)[-1]
    (fusion,) = (bound_symbol for bound_symbol in trace.bound_symbols if bound_symbol.sym.is_fusion)
    by_name = {proxy.name: arg for proxy, arg in zip(trace.args, args, strict=True)}
    return fusion._call_ctx[fusion.sym.name], [by_name[proxy.name] for proxy in fusion.args]


def _check_agreement(calls: Mapping[str, Call]) -> None:
    import torch
    from torch.utils._pytree import tree_leaves

    expected = tree_leaves(calls["execute"]())[0]
    for name, call in calls.items():
        if not torch.equal(tree_leaves(call())[0], expected):
            raise click.ClickException(f"{name} computes something else than execute")


def measure(calls: Mapping[str, Call], rounds: int, block: int) -> dict[str, float]:
    """Microseconds of one call of each, less those of an empty one: medians over rounds in which they take turns."""
    import torch

    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    everything = {**calls, "": lambda: None}
    samples: dict[str, list[float]] = {name: [] for name in everything}
    for turn in range(rounds + 1):
        for name, call in everything.items():
            synchronize()
            start = time.perf_counter_ns()
            for _ in repeat(None, block):
                call()
            nanoseconds = time.perf_counter_ns() - start
            if turn:  # the first one warms up
                samples[name].append(nanoseconds / block / 1e3)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    empty = medians.pop("")
    return {name: round(value - empty, 3) for name, value in medians.items()}


def _print(points: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title="host time of a call", caption="microseconds; in brackets: added to the backend's own call")
    table.add_column("inputs", justify="right")
    for name in points[0]["microseconds"]:
        table.add_column(name, justify="right")
    for point in points:
        times, added = point["microseconds"], point["added"]
        cells = (f"{times[name]:.2f}" + (f" ({added[name]:+.2f})" if name != "execute" else "") for name in times)
        table.add_row(str(point["inputs"]), *cells)
    report.console().print(table)


if __name__ == "__main__":
    main()
