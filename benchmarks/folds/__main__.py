"""Which folds sum a residual chain with the least traffic: widths, sets of widths, and one launch for any number.

Needs a CUDA device and nvFuser. Everything is compared with the floor: head and terms read once, the sum written once,
at the speed of a large copy, measured here. A kernel that reads much more than it writes can be a little faster.

- chains: each set of widths (``8 4 2 1``: as many folds of 8 terms as fit, then of 4, ...), the widest fold first, or
  the narrowest (``1 2 4 8``); one nvFuser kernel for up to 16 terms; and ``table``: a Triton kernel that finds any
  number of terms through a table of their addresses, which is made anew for every call.
- widths: one fold behind another one, so that its head is a float32 sum.

Every sum is compared, bit for bit, with torch adding one term after the other. Times on the device are measured with
the host ahead; a chain of many launches on small tensors may take its host time instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.common.options import Numbers, Words, command, json_option
from benchmarks.common.results import Outcome, make_result, say, write_result
from benchmarks.folds.spec import ITEM_BYTES, MB, MOST_BYTES, Step, order_steps

_LEAST_MEMORY = 2048 * MB
_SHARE_OF_MEMORY = 0.7
_TIMES_CACHE = 2
"""What was read this many caches ago is not there anymore."""


@command(__doc__)
@click.option("--sizes", type=Numbers(), default="1,4,16,64,256", help="Of a term, in MB (of 1,048,576 bytes).")
@click.option("--widths", type=Numbers(), default="2,3,4,6,8,12,16,24,32", help="Of single folds.")
@click.option("--terms", type=Numbers(), default="3,8,16,31,64,128", help="Lengths of chains.")
@click.option("--dtypes", type=Words(tuple(ITEM_BYTES)), default="bfloat16,float32", help="Of the terms.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=100.0, help="Begin nothing later; what is left is noted."
)
@json_option
def main(json_file: Path | None, seconds: float, **options: Any) -> None:
    """Runs the benchmark."""
    until = time.perf_counter() + seconds
    from fusioncache.backends.nvfuser.backend import nvfuser_problem

    problem = nvfuser_problem()
    if problem:
        raise click.UsageError(f"folds are measured on a CUDA device with nvFuser: {problem}")
    from benchmarks.common.environment import describe
    from benchmarks.folds import report, run

    everything = [MB * size for size in options["sizes"]], options["dtypes"], options["terms"], options["widths"]
    work = list(order_steps(*everything))
    chosen = {name: list(value) for name, value in options.items()} | {"seconds": seconds}
    bench, copied = _bench(work)
    result = make_result(describe(), chosen, copy=copied)

    def save(outcome: Outcome) -> None:
        result.update(points=outcome.points, notes=outcome.notes)
        write_result(json_file, result)

    outcome = run.run(work, bench, until, save)
    report.print_result(result)
    sys.exit(1 if outcome.failed else 0)


def _bench(work: Sequence[Step]) -> tuple[Any, dict[str, float]]:
    """Returns what measures on this machine, and what a large copy takes here."""
    import torch

    from benchmarks.folds.device import Arena, Clock
    from benchmarks.folds.kernels import Folds, PointerTables
    from benchmarks.folds.run import Bench
    from fusioncache.backends.nvfuser.backend import NvFuser

    torch.manual_seed(0)
    free = int(_SHARE_OF_MEMORY * torch.cuda.mem_get_info()[0])
    wanted = max([step.needs for step in work if step.needs <= MOST_BYTES] + [_LEAST_MEMORY])
    cold = _TIMES_CACHE * torch.cuda.get_device_properties(0).L2_cache_size
    arena, clock = Arena(min(wanted, free), "cuda", cold), Clock()
    synchronize = torch.cuda.synchronize
    folds, tables = Folds(NvFuser(), synchronize), PointerTables(synchronize)
    _warm_up(lambda: folds.way((1, 1), _small()), lambda: tables.way(_small(), 256, 1))
    moved, seconds = arena.copy_seconds(clock)
    copied = {"moved_bytes": moved, "seconds": seconds, "bytes_per_second": moved / seconds}
    return Bench(arena, clock, folds, tables, moved / seconds), copied


def _warm_up(*compilations: Callable[[], Any]) -> None:
    """Pays what the first compilation of a process takes once. What does not work will say so where it is measured."""
    for compilation in compilations:
        try:
            compilation()
        except Exception as error:
            say(f"warming up: {type(error).__name__}: {error}\n")


def _small() -> list[Any]:
    import torch

    return [torch.rand(10, 10, device="cuda").to(torch.bfloat16) for _ in range(3)]


if __name__ == "__main__":
    main()
