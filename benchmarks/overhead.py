"""Host time of one call of a compiled region: the backend's own call, Thunder's, and fusioncache's.

The variants take turns in short rounds, in one process, on small tensors, so that the GPU is never what is waited for.
Each round times blocks of calls between two synchronizations; a variant's figure is the median over all rounds.

- ``execute``: the backend's own call: nvFuser's ``FusionDefinition.execute``, or the function that TorchInductor made.
- ``bare``: what that method of nvFuser calls in turn, ``FusionExecutorCache.execute``.
- ``thunder``: what a trace without fusioncache calls: with nvFuser, Thunder's ``FusionDefinitionWrapper``.
- ``fusioncache``: what a trace with fusioncache calls.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import click

from benchmarks.common import environment
from benchmarks.common.options import Numbers, backend_option, command, count_option, json_option
from benchmarks.common.processes import say
from benchmarks.common.runner import Point, Run, pick

Call = Callable[[], Any]


@command(__doc__)
@click.option("--inputs", type=Numbers(), default=(2, 4, 8), help="Numbers of inputs of the regions.")
@backend_option()
@count_option("--rounds", 50, "How often each variant is timed.")
@count_option("--calls", 200, "Calls timed at once.")
@json_option
def main(inputs: Sequence[int], backend: str, rounds: int, calls: int, json_file: Path | None) -> None:
    """Runs the benchmark."""
    from benchmarks.common.counting import use_backend

    machine = environment.Machine(**environment.probe(backend))
    if machine.problem:
        raise click.UsageError(f"--backend {backend} does not work here: {machine.problem}")
    use_backend(machine.backend)
    options = {"inputs": inputs, "backend": machine.backend, "rounds": rounds, "calls": calls}
    run = Run(machine, options, json_file)
    for count in inputs:
        microseconds = measure(make_variants(count, machine.backend), rounds, calls)
        added = {name: round(value - microseconds["execute"], 3) for name, value in microseconds.items()}
        run.keep({"inputs": count, "backend": machine.backend, "microseconds": microseconds, "added": added})
        say(f"{count} inputs: {', '.join(f'{name} {value:.2f} us' for name, value in microseconds.items())}\n")
    names = list(run.points[0]["microseconds"])
    columns = {"inputs": pick("inputs"), **{name: _write_cell(name) for name in names}}
    run.finish("host time of a call", columns, "microseconds; in brackets: added to the backend's own call")


def _write_cell(name: str) -> Callable[[Point], str]:
    def cell(point: Point) -> str:
        added = f" ({point['added'][name]:+.2f})" if name != "execute" else ""
        return f"{point['microseconds'][name]:.2f}{added}"

    return cell


def make_variants(inputs: int, backend: str) -> Mapping[str, Call]:
    """Returns the ways to call one pointwise region with this many inputs, each called once already."""
    import torch

    import fusioncache

    device = environment.device()
    args = [torch.rand(10, 10, device=device) for _ in range(inputs)]
    uncached, args_of_region = _region(_program(inputs), args, backend)
    transform = fusioncache.FusionCache(backend=backend, cache=fusioncache.Cache(record=False))
    cached, args_of_template = _region(_program(inputs), args, backend, transform)
    if transform.stats().bypasses:
        raise click.ClickException(f"fusioncache left the region as it was: {dict(transform.stats().bypasses)}")
    calls = {} if backend != "nvfuser" else _nvfuser_calls(uncached.last_used, args_of_region)
    if backend != "nvfuser":
        calls = {"execute": lambda: uncached.function(*args_of_region)}
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
    program: Callable[..., Any], args: Sequence[Any], backend: str, transform: Any = None
) -> tuple[Any, list[Any]]:
    """Returns the function that the trace calls for its one region, and its arguments."""
    import thunder

    from benchmarks.common.thunder_jit import find_fusions, jit

    compiled = jit(program, backend, transform)
    compiled(*args)
    trace = thunder.last_traces(compiled)[-1]
    (fusion,) = find_fusions(compiled)
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
    """Returns microseconds of a call of each, less an empty one's: medians over rounds, in which they take turns."""
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


if __name__ == "__main__":
    main()
