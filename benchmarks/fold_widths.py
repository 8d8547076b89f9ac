"""Which folds sum a chain with the least traffic: sets of widths, and one launch for any number of terms.

Needs a CUDA device and nvFuser. Each set of widths (``8 4 2 1``: as many folds of 8 terms as fit, then of 4, ...) sums
chains, and so do one nvFuser kernel for up to 16 terms, and ``table``: a Triton kernel that finds any number of terms
through a table of their addresses, which is made anew for every call. Everything is compared with the floor: head and
terms read once, the sum written once, at the speed of a large copy, measured here. A kernel that reads much more than
it writes can be a little faster.

Every sum is compared, bit for bit, with torch adding one term after the other. Times on the device are measured with
the host ahead; a chain of many launches on small tensors may take its host time instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import click
import torch

from benchmarks.common.environment import Machine, probe
from benchmarks.common.options import Numbers, Words, command, json_option
from benchmarks.common.processes import say
from benchmarks.common.runner import Point, Run, is_wrong, name_point, print_points, print_table
from benchmarks.common.tensors import same_bits
from fusioncache.backends.api import Backend
from fusioncache.ir import Const, Graph, Op, Ref, TensorType
from fusioncache.ir.ops import RESIDUAL
from fusioncache.template.plan import inline

MB = 2**20
ITEM_BYTES = {"bfloat16": 2, "float32": 4}
SUM = "float32"
"""In which all sums are computed and passed from fold to fold."""
WIDTH_SETS = (
    *((8, 4, 2, 1), (16, 8, 4, 2, 1), (32, 16, 8, 4, 2, 1), (16, 4, 1), (12, 6, 3, 1), (32, 8, 2, 1), (4, 2, 1)),
)
ONE_KERNEL = "one kernel"
_LONGEST_KERNEL = 16
"""Terms. The compile time of a kernel grows faster than its inputs."""
POINTER_TABLE = ((1024, 4), (1024, 8), (2048, 4))
"""Variants of the Triton kernel: elements of a block, and terms that are loaded before the first one is added."""

_SHARE_OF_MEMORY = 0.7
_TIMES_CACHE = 2
"""What was read this many caches ago is not there anymore."""
_COLUMNS = 4096
"""Of every tensor, as those of a model have two dimensions."""
_COPIED = 2048 * MB
_RUNS, _FEWEST_RUNS = 20, 7
_SECONDS = 0.06
"""For the runs of one way, roughly: long ones are repeated less often, as they differ less."""
_SPAN = 50e-6
"""Seconds between two events, at least: short calls are timed together, as an event takes a microsecond itself."""
_LAUNCHES = 400
"""Between two events, at most. The queue to the device holds about a thousand."""
_CYCLES = 2e9
"""Of the device's clock in a second, at most."""

Widths = tuple[int, ...]
Tensors = Sequence[Any]


def split(terms: int, widths: Widths) -> Widths:
    """Returns the folds that add this many terms: as many of the widest as fit, then of the next."""
    folds: list[int] = []
    for width in widths:
        count, terms = divmod(terms, width)
        folds += [width] * count
    if terms:
        raise ValueError(f"folds of {label(widths)} terms leave {terms} of them")
    return tuple(folds)


def label(widths: Widths) -> str:
    """Names a set of widths in a table."""
    return " ".join(map(str, widths))


def plans(terms: int) -> dict[Widths, list[str]]:
    """Returns the different sequences of folds for a chain, each with the names of the plans that have it."""
    found: dict[Widths, list[str]] = {}
    for widths in WIDTH_SETS:
        found.setdefault(split(terms, widths), []).append(label(widths))
    if terms <= _LONGEST_KERNEL:
        found.setdefault((terms,), []).append(ONE_KERNEL)
    return found


def count_moved_bytes(elements: int, dtype: str, folds: Widths) -> int:
    """Returns the bytes that folds read and write: head and terms once, each sum once or, if a fold takes it, twice."""
    stored = (1 + sum(folds)) * ITEM_BYTES[dtype]
    return elements * (stored + (2 * len(folds) - 1) * ITEM_BYTES[SUM])


class Clock:
    """A clock measures calls. It keeps the device busy until the host has issued what is timed."""

    def measure(self, calls: Sequence[Callable[[], Any]], expected: float, launches: int) -> float:
        """Returns the median seconds of one call on the device; these take turns.

        Args:
            calls: the same on different tensors.
            expected: seconds of one on the device, roughly.
            launches: kernels of one.
        """
        for call in calls[:3]:
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        calls[0]()
        host = time.perf_counter() - start
        together = max(1, min(ceil(_SPAN / expected), _LAUNCHES // launches))
        runs = max(_FEWEST_RUNS, min(_RUNS, int(_SECONDS / (expected * together))))
        turn, seconds = cycle(calls), []
        for _ in range(runs):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int((2 * host * together + _SPAN) * _CYCLES))
            before.record()
            for call in islice(turn, together):
                call()
            after.record()
            after.synchronize()
            seconds.append(before.elapsed_time(after) / 1e3 / together)
        return median(seconds)


class Arena:
    """One piece of memory that all tensors are cut from, so that none has to be filled anew.

    Args:
        size: bytes.
        device: where.
        cold: bytes after which nothing of the first is left in the cache.
    """

    def __init__(self, size: int, device: str, cold: int):
        self._cold = cold
        self.memory = torch.empty(size // 512 * 512, dtype=torch.uint8, device=device)
        # The same bits are read as float32, too: one bfloat16 then is its upper half, and the other rounds off.
        for part in self.memory.view(torch.bfloat16).split(2**30):
            part.normal_()

    def cut(self, dtype: str, elements: int, count: int) -> list[list[Any]]:
        """Returns as many sets of tensors as calls must take in turn to find none of theirs in the cache.

        Raises:
            ValueError: if there is not enough memory for one.
        """
        size, there = elements * ITEM_BYTES[dtype], self.memory.numel()
        if size * count > there:
            raise ValueError(f"{size * count} bytes are needed, and there are {there}")
        copies = max(1, min(ceil(self._cold / (size * count)), there // (size * count)))
        tensors = self.memory[: copies * count * size].view(getattr(torch, dtype)).view(copies, count, -1, _COLUMNS)
        return [list(tensors[number]) for number in range(copies)]


@dataclass(frozen=True, slots=True)
class Sum:
    """One way to sum a chain, with nothing left to compile.

    Attributes:
        call: takes head and terms, returns the sum.
        compile_seconds: of all that it needs, whether or not another way had it compiled before.
        launches: kernels of a call.
    """

    call: Callable[[Tensors], Any]
    compile_seconds: float
    launches: int


class Folds:
    """Folds as fusioncache compiles them, each once.

    Args:
        backend: what compiles them.
        synchronize: waits for the device.
    """

    def __init__(self, backend: Backend, synchronize: Callable[[], None]):
        self._backend = backend
        self._synchronize = synchronize
        self._compiled: dict[Graph, tuple[Callable[[Tensors], Tensors], float]] = {}

    def make_sum(self, widths: Widths, args: Tensors) -> Sum:
        """Returns the folds of these widths, one after the other as ``TemplateCall`` runs them, for such tensors."""
        steps: list[tuple[Callable[[Tensors], Tensors], int, int]] = []
        graphs: dict[Graph, float] = {}
        total, start = args[0], 1
        for width in widths:
            taken = [total, *args[start : start + width]]
            graph = make_fold(taken)
            run, graphs[graph] = self._compile(graph, taken)
            (total,) = run(taken)
            steps.append((run, start, start + width))
            start += width

        def call(args: Tensors) -> Any:
            total = args[0]
            for run, start, stop in steps:
                (total,) = run([total, *args[start:stop]])
            return total

        return Sum(call, sum(graphs.values()), len(steps))

    def _compile(self, graph: Graph, args: Tensors) -> tuple[Callable[[Tensors], Tensors], float]:
        if graph not in self._compiled:
            self._synchronize()
            start = time.perf_counter()
            run = self._backend.compile(graph, args)
            self._synchronize()
            self._compiled[graph] = run, time.perf_counter() - start
        return self._compiled[graph]


def make_fold(args: Tensors) -> Graph:
    """Returns the fold that adds all these tensors to the first."""
    head, term = args[0], args[1]
    total = TensorType(SUM, tuple(term.shape), term.device.type)
    chain = Op(RESIDUAL, (Ref(0), Const("dtype", _name_dtype(term))), (total,))
    return inline(Graph((replace(total, dtype=_name_dtype(head)),), (chain,), (1,)), (len(args) - 1,))


def _name_dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def make_table_sum(args: Tensors, block: int, ahead: int) -> Sum:
    """Returns the Triton kernel with these constants. A call makes the table, too."""
    from fusioncache.backends.nvfuser.pointer_table import launch, pointer_table

    start = time.perf_counter()
    launch(args[0], pointer_table(args[1:]), block, ahead)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return Sum(lambda args: launch(args[0], pointer_table(args[1:]), block, ahead), seconds, 1)


def add_in_turn(args: Tensors) -> Any:
    """Returns what every way must compute, bit for bit: torch adds one term after the other in float32."""
    total = args[0].to(torch.float32, copy=True)
    for term in args[1:]:
        total += term
    return total


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and with what is measured.

    Attributes:
        arena: where the terms lie.
        clock: what measures.
        folds: fusioncache's.
        bandwidth: bytes per second of a copy, the measure of the floor.
    """

    arena: Arena
    clock: Clock
    folds: Folds
    bandwidth: float

    def measure(self, dtype: str, term_bytes: int, terms: int) -> Iterator[Point]:
        """Yields a point for every way to sum a chain. What fails is recorded, and the rest still runs."""
        about = {"kind": "chain", "dtype": dtype, "term_bytes": term_bytes, "terms": terms}
        elements = term_bytes // ITEM_BYTES[dtype]
        sets = self.arena.cut(dtype, elements, terms + 1)
        expected, least = add_in_turn(sets[0]), count_moved_bytes(elements, dtype, (terms,))
        for widths, names in plans(terms).items():
            what: Point = {**about, "way": "folds", "plans": names, "folds": list(widths)}
            moved = count_moved_bytes(elements, dtype, widths)
            yield self._attempt(what, partial(self.folds.make_sum, widths, sets[0]), sets, expected, moved, least)
        for block, ahead in POINTER_TABLE:
            what = {**about, "way": "pointer table", "block": block, "ahead": ahead}
            yield self._attempt(what, partial(make_table_sum, sets[0], block, ahead), sets, expected, least, least)

    def _attempt(
        self, about: Point, make: Callable[[], Sum], sets: Sequence[Any], expected: Any, moved: int, least: int
    ) -> Point:
        try:
            way = make()
            bitwise = same_bits(way.call(sets[0]), expected)
            calls = [partial(way.call, args) for args in sets]
            run = self.clock.measure(calls, moved / self.bandwidth, way.launches)
        except Exception as error:
            return {**about, "error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        seconds = {"run": run, "compile": way.compile_seconds, "floor": least / self.bandwidth}
        counts = {"launches": way.launches, "moved_bytes": moved, "least_bytes": least}
        return {**about, **counts, "seconds": seconds, "correct": bitwise}


@command(__doc__)
@click.option("--sizes", type=Numbers(), default=(16, 64, 1, 4, 256), help="Of a term, in MB (of 1,048,576 bytes).")
@click.option("--terms", type=Numbers(), default=(3, 8, 16, 31, 64, 128), help="Lengths of chains.")
@click.option("--dtypes", type=Words(tuple(ITEM_BYTES)), default=tuple(ITEM_BYTES), help="Of the terms.")
@click.option("--limit", type=click.FloatRange(min=1.0), default=100.0, help="Seconds after which nothing begins.")
@json_option
def main(
    json_file: Path | None, sizes: Sequence[int], terms: Sequence[int], dtypes: Sequence[str], limit: float
) -> None:
    """Runs the benchmark."""
    from fusioncache.backends.nvfuser.backend import nvfuser_problem

    problem = nvfuser_problem()
    if problem:
        raise click.UsageError(f"folds are measured on a CUDA device with nvFuser: {problem}")
    run = Run(Machine(**probe("nvfuser")), {"sizes": sizes, "terms": terms, "dtypes": dtypes}, json_file, limit)
    bench = _make_bench()
    run.more["copy"] = {"bytes_per_second": bench.bandwidth}
    for size, dtype, count in ((size, dtype, count) for size in sizes for dtype in dtypes for count in terms):
        name = f"chain of {count}, {dtype}, {size} MB a term"
        if (run.time_left() or 0) <= 0:
            run.notes.append(f"{name}: no time was left")
        elif size * MB * (count + 1) > bench.arena.memory.numel():
            run.notes.append(f"{name}: it takes too much memory")
        else:
            run.keep(*bench.measure(dtype, size * MB, count))
            say(f"{name}\n")
    print_table("time over the floor, geometric mean", *summarize(run.points))
    wrong = [point for point in run.points if is_wrong(point)]
    print_points("chains that failed", wrong, {"<chain": name_point})
    sys.exit(1 if wrong else 0)


def summarize(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the rows of a table: for each plan its time over the floor, by the size of a term."""
    found: dict[str, dict[str, list[Point]]] = {}
    for point in points:
        for name in point["plans"] if point["way"] == "folds" else [f"table {point['block']}/{point['ahead']}"]:
            size = f"{point['dtype']}, {point['term_bytes'] / MB:g} MB"
            found.setdefault(name, {}).setdefault(size, []).append(point)
    sizes = list(dict.fromkeys(size for by_size in found.values() for size in by_size))
    rows = [[name, *(_average(by_size.get(size, ())) for size in sizes)] for name, by_size in found.items()]
    return ["<plan", *sizes], rows


def _average(points: Sequence[Point]) -> str:
    """Returns the geometric mean of the points; nothing if one failed, as means of others could not be compared."""
    if not points or any("error" in point for point in points):
        return ""
    return f"{geometric_mean(point['seconds']['run'] / point['seconds']['floor'] for point in points):.3f}"


def _make_bench() -> Bench:
    from fusioncache.backends.nvfuser.backend import NvFuser

    torch.manual_seed(0)
    free = int(_SHARE_OF_MEMORY * torch.cuda.mem_get_info()[0])
    arena, clock = Arena(free, "cuda", _TIMES_CACHE * torch.cuda.get_device_properties(0).L2_cache_size), Clock()
    folds = Folds(NvFuser(), torch.cuda.synchronize)
    folds.make_sum((1, 1), [torch.rand(10, 10, device="cuda") for _ in range(3)])  # what is paid once
    source = arena.memory[:_COPIED]
    target = torch.empty_like(source)
    moved = 2 * source.numel()
    return Bench(arena, clock, folds, moved / clock.measure([lambda: target.copy_(source)], moved / 4e12, 1))


if __name__ == "__main__":
    main()
