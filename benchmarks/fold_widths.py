"""Which folds sum a residual chain with the least traffic: widths, sets of widths, and one launch for any number.

Needs a CUDA device and nvFuser. Everything is compared with the floor: head and terms read once, the sum written once,
at the speed of a large copy, measured here. A kernel that reads much more than it writes can be a little faster.

- chains: each set of widths (``8 4 2 1``: as many folds of 8 terms as fit, then of 4, ...); one nvFuser kernel for up
  to 16 terms; and ``table``: a Triton kernel that finds any number of terms through a table of their addresses, which
  is made anew for every call.
- widths: one fold behind another one, so that its head is a float32 sum.

Every sum is compared, bit for bit, with torch adding one term after the other. Times on the device are measured with
the host ahead; a chain of many launches on small tensors may take its host time instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from benchmarks.common.runner import Point, Run, print_line, print_table
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
    (8, 4, 2, 1),
    (16, 8, 4, 2, 1),
    (32, 16, 8, 4, 2, 1),
    (16, 4, 1),
    (12, 6, 3, 1),
    (32, 8, 2, 1),
    (4, 2, 1),
)
ONE_KERNEL = "one kernel"
_LONGEST_KERNEL = 16
"""Terms. The compile time of a kernel grows faster than its inputs."""

POINTER_TABLE = ((1024, 4), (1024, 8), (2048, 4))
"""Variants of the Triton kernel: elements of a block, and terms that are loaded before the first one is added."""

MOST_BYTES = 60 * 10**9
_TELLING_SIZES = (16 * MB, 64 * MB)
"""Measured before all others. A hidden state in training: too large for the launches to count, and chains of them for
the L2 cache."""

Widths = tuple[int, ...]


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


def moved_bytes(elements: int, dtype: str, folds: Widths, head: str | None = None) -> int:
    """Returns the bytes that folds read and write: head and terms once, each sum once or, if a fold takes it, twice.

    Args:
        elements: of a term.
        dtype: of the terms.
        folds: the width of each.
        head: its dtype, if it is not that of the terms.
    """
    stored = ITEM_BYTES[head or dtype] + sum(folds) * ITEM_BYTES[dtype]
    return elements * (stored + (2 * len(folds) - 1) * ITEM_BYTES[SUM])


def least_bytes(elements: int, dtype: str, terms: int, head: str | None = None) -> int:
    """Returns the bytes where each term is read once, and the sum written once."""
    return moved_bytes(elements, dtype, (terms,), head)


@dataclass(frozen=True, slots=True)
class Step:
    """What is measured on the same tensors.

    Attributes:
        kind: ``chain``: every way to sum one. ``width``: one fold behind another, whose head so is a float32 sum.
        dtype: of the terms.
        term_bytes: the size of each.
        terms: how many there are.
    """

    kind: str
    dtype: str
    term_bytes: int
    terms: int

    @property
    def elements(self) -> int:
        """How many elements a term has."""
        return self.term_bytes // ITEM_BYTES[self.dtype]

    @property
    def head(self) -> str:
        """The dtype of what the terms are added to."""
        return self.dtype if self.kind == "chain" else SUM

    @property
    def needs(self) -> int:
        """Bytes of the head and all terms."""
        return self.elements * (ITEM_BYTES[self.head] + self.terms * ITEM_BYTES[self.dtype])

    @property
    def least_bytes(self) -> int:
        """The bytes that every way must move."""
        return least_bytes(self.elements, self.dtype, self.terms, self.head)

    def __str__(self) -> str:
        what = f"chain of {self.terms}" if self.kind == "chain" else f"width {self.terms}"
        return f"{what}, {self.dtype}, {size(self.term_bytes)} a term"


def size(term_bytes: int) -> str:
    """Writes a term's size in a table."""
    return f"{term_bytes / MB:g} MB"


def order_steps(
    sizes: Sequence[int], dtypes: Sequence[str], terms: Sequence[int], widths: Sequence[int]
) -> Iterator[Step]:
    """Yields everything to measure, the most telling first, as there may not be time for all.

    Args:
        sizes: of a term, in bytes.
        dtypes: of the terms.
        terms: lengths of chains.
        widths: of single folds.
    """
    telling = [size for size in sizes if size in _TELLING_SIZES]
    for group in (telling, [size for size in sizes if size not in telling]):
        for kind, counts in (("chain", terms), ("width", widths)):
            for term_bytes in group:
                for dtype in dtypes:
                    yield from (Step(kind, dtype, term_bytes, count) for count in counts)


def count_copies(needed: int, cold: int, there: int) -> int:
    """Returns how many sets of tensors calls take in turn, so that none finds its own in the cache.

    Args:
        needed: bytes of one set.
        cold: bytes after which nothing of the first is left in the cache.
        there: bytes that there are for all of them.
    """
    return max(1, min(ceil(cold / needed), there // needed))


COLUMNS = 4096
"""Of every tensor, as those of a model have two dimensions."""

_COPIED = 2048 * MB
_RUNS = 20
_FEWEST_RUNS = 7
_HOST_RUNS = 7
_SECONDS = 0.06
"""For the runs of one way, roughly: long ones are repeated less often, as they differ less."""
_SPAN = 50e-6
"""Seconds between two events, at least: short calls are timed together, as an event takes a microsecond itself."""
_LAUNCHES = 400
"""Between two events, at most. The queue to the device holds about a thousand."""
_CYCLES = 2e9
"""Of the device's clock in a second, at most."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians, in seconds.

    Attributes:
        run: of a call on the device, with the host ahead of it.
        host: until a call is issued.
        runs: how many times ``run`` was measured, and of how many calls each is the average.
    """

    run: float
    host: float
    runs: tuple[int, int]


class Clock:
    """A clock measures calls. It keeps the device busy until the host has issued what is timed."""

    def measure(self, calls: Sequence[Callable[[], Any]], expected: float, launches: int) -> Timing:
        """Returns the time of one call; these take turns.

        Args:
            calls: the same on different tensors.
            expected: seconds of one on the device, roughly.
            launches: kernels of one.
        """
        for call in calls[:3]:
            call()
        host = self.host(calls)
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
        return Timing(median(seconds), host, (runs, together))

    def host(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Returns the seconds until one of these is issued."""
        seconds = []
        for call in islice(cycle(calls), _HOST_RUNS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        torch.cuda.synchronize()
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
        self._memory = torch.empty(size // 512 * 512, dtype=torch.uint8, device=device)
        # The same bits are read as float32, too: one bfloat16 then is its upper half, and the other rounds off.
        for part in self._memory.view(torch.bfloat16).split(2**30):
            part.normal_()

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._memory.numel()

    def sets(self, dtypes: Sequence[str], elements: int) -> list[list[Any]]:
        """Returns as many sets of tensors as calls must take in turn to find none of theirs in the cache."""
        needed = elements * sum(ITEM_BYTES[dtype] for dtype in dtypes)
        if needed > self.size:
            raise ValueError(f"{needed} bytes are needed, and there are {self.size}")
        found: list[list[Any]] = []
        offset = 0
        for _ in range(count_copies(needed, self._cold, self.size)):
            found.append([])
            for dtype in dtypes:
                end = offset + elements * ITEM_BYTES[dtype]
                found[-1].append(self._memory[offset:end].view(getattr(torch, dtype)).view(-1, COLUMNS))
                offset = end
        return found

    def copy_seconds(self, clock: Clock) -> tuple[int, float]:
        """Returns the bytes that a large copy reads and writes, and its seconds."""
        source = self._memory[: min(_COPIED, self.size)]
        target = torch.empty_like(source)
        moved = 2 * source.numel()
        return moved, clock.measure([lambda: target.copy_(source)], moved / 4e12, 1).run


Tensors = Sequence[Any]


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


@dataclass(frozen=True, slots=True)
class _Fold:
    run: Callable[[Tensors], Tensors]
    seconds: float


class Folds:
    """Folds as fusioncache compiles them, each once.

    Args:
        backend: what compiles them.
        synchronize: waits for the device.
    """

    def __init__(self, backend: Backend, synchronize: Callable[[], None]):
        self._backend = backend
        self._synchronize = synchronize
        self._compiled: dict[Graph, _Fold] = {}

    def way(self, widths: Widths, args: Tensors) -> Sum:
        """Returns the folds of these widths, one after the other, for tensors like these."""
        steps: list[tuple[_Fold, int, int]] = []
        graphs: dict[Graph, float] = {}
        total, start = args[0], 1
        for width in widths:
            stop = start + width
            taken = [total, *args[start:stop]]
            graph = make_fold(taken)
            fold = self._fold(graph, taken)
            (total,) = fold.run(taken)
            graphs[graph] = fold.seconds
            steps.append((fold, start, stop))
            start = stop
        return Sum(_chain(steps), sum(graphs.values()), len(steps))

    def _fold(self, graph: Graph, args: Tensors) -> _Fold:
        found = self._compiled.get(graph)
        if found is None:
            self._synchronize()
            start = time.perf_counter()
            run = self._backend.compile(graph, args)
            self._synchronize()
            found = self._compiled[graph] = _Fold(run, time.perf_counter() - start)
        return found


def _chain(folds: Sequence[tuple[_Fold, int, int]]) -> Callable[[Tensors], Any]:
    """Runs them one after the other, as ``TemplateCall`` does."""
    steps = [(fold.run, start, stop) for fold, start, stop in folds]

    def call(args: Tensors) -> Any:
        total = args[0]
        for run, start, stop in steps:
            (total,) = run([total, *args[start:stop]])
        return total

    return call


def make_fold(args: Tensors) -> Graph:
    """Returns the fold that adds all these tensors to the first."""
    head, term = args[0], args[1]
    total = TensorType(SUM, tuple(term.shape), term.device.type)
    chain = Op(RESIDUAL, (Ref(0), Const("dtype", _dtype(term))), (total,))
    return inline(Graph((replace(total, dtype=_dtype(head)),), (chain,), (1,)), (len(args) - 1,))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class PointerTables:
    """The Triton kernel. Its module, and Triton with it, is imported by the first way.

    Args:
        synchronize: waits for the device.
    """

    def __init__(self, synchronize: Callable[[], None]):
        self._synchronize = synchronize
        self._seconds: dict[Any, float] = {}

    def way(self, args: Tensors, block: int, ahead: int) -> Sum:
        """Returns the kernel with these constants. A call makes the table, too."""
        from fusioncache.backends.nvfuser.pointer_table import launch, pointer_table

        self._synchronize()
        start = time.perf_counter()
        launch(args[0], pointer_table(args[1:]), block, ahead)
        self._synchronize()
        seconds = time.perf_counter() - start
        # Every number of terms and elements has the same kernel, as long as a block divides these or none does.
        seconds = self._seconds.setdefault((args[0].dtype, args[1].dtype, block, ahead), seconds)
        return Sum(lambda args: launch(args[0], pointer_table(args[1:]), block, ahead), seconds, 1)

    def parts(self, args: Tensors, block: int, ahead: int) -> Mapping[str, Callable[[], Any]]:
        """Returns the halves of a call: ``table`` makes a table, ``kernel`` launches the kernel on one made before."""
        from fusioncache.backends.nvfuser.pointer_table import launch, pointer_table

        table = pointer_table(args[1:])
        return {
            "table": lambda: pointer_table(args[1:]),
            "kernel": lambda: launch(args[0], table, block, ahead),
        }


def add_in_turn(args: Tensors) -> Any:
    """Returns what every way must compute, bit for bit: torch adds one term after the other in float32."""
    total = args[0].to(torch.float32, copy=True)
    for term in args[1:]:
        total += term
    return total


_WRONG = "its sum is not bitwise that of torch"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and with what is measured.

    Attributes:
        arena: where the terms lie.
        clock: what measures.
        folds: fusioncache's.
        tables: the Triton kernel.
        bandwidth: bytes per second of a copy, the measure of the floor.
    """

    arena: Arena
    clock: Clock
    folds: Folds
    tables: PointerTables
    bandwidth: float

    def points(self, step: Step) -> Iterator[Point]:
        """Yields a point for every way of one step."""
        about = {"kind": step.kind, "dtype": step.dtype, "term_bytes": step.term_bytes, "terms": step.terms}
        try:
            sets = self.arena.sets([step.head, *[step.dtype] * step.terms], step.elements)
            expected = add_in_turn(sets[0])
        except Exception as error:
            yield about | _failure(error)
            return
        for what, measure in self._ways(step, sets, expected):
            yield about | what | _attempt(measure)

    def _ways(self, step: Step, sets: Sequence[Any], expected: Any) -> Iterator[tuple[Point, Callable[[], Point]]]:
        ways = plans(step.terms) if step.kind == "chain" else {(step.terms,): []}
        for widths, names in ways.items():
            what: Point = {"way": "folds", "plans": names, "folds": list(widths)}
            yield what, partial(self._measure_folds, step, widths, sets, expected)
        for block, ahead in POINTER_TABLE if step.kind == "chain" else ():
            what = {"way": "pointer table", "block": block, "ahead": ahead}
            yield what, partial(self._measure_table, step, block, ahead, sets, expected)

    def _measure_folds(self, step: Step, widths: tuple[int, ...], sets: Sequence[Any], expected: Any) -> Point:
        way = self.folds.way(widths, sets[0])
        moved = moved_bytes(step.elements, step.dtype, widths, step.head)
        return self._measure(step, way, moved, sets, expected)

    def _measure_table(self, step: Step, block: int, ahead: int, sets: Sequence[Any], expected: Any) -> Point:
        way = self.tables.way(sets[0], block, ahead)
        point = self._measure(step, way, step.least_bytes, sets, expected)
        parts = [self.tables.parts(args, block, ahead) for args in sets]
        kernel = self.clock.measure([part["kernel"] for part in parts], point["seconds"]["floor"], 1)
        point["seconds"] |= {"kernel": kernel.run, "table": self.clock.host([part["table"] for part in parts])}
        return point

    def _measure(self, step: Step, way: Sum, moved: int, sets: Sequence[Any], expected: Any) -> Point:
        bitwise = same_bits(way.call(sets[0]), expected)
        floor = step.least_bytes / self.bandwidth
        calls = [partial(way.call, args) for args in sets]
        timing = self.clock.measure(calls, moved / self.bandwidth, way.launches)
        seconds = {"run": timing.run, "host": timing.host, "compile": way.compile_seconds, "floor": floor}
        counts = {"launches": way.launches, "moved_bytes": moved, "least_bytes": step.least_bytes}
        point = {**counts, "seconds": seconds, "runs": list(timing.runs), "bitwise": bitwise}
        return point if bitwise else point | {"error": _WRONG}


def measure_steps(steps: Sequence[Step], bench: Bench, until: float, run: Run) -> None:
    """Measures one step after the other, the most telling first. What fails is recorded, and the rest still runs.

    Args:
        steps: to measure.
        bench: what measures them.
        until: the reading of ``time.perf_counter`` after which no step is begun.
        run: keeps the points, and notes what was left out.
    """
    for step in steps:
        start = time.perf_counter()
        if step.needs > min(MOST_BYTES, bench.arena.size):
            run.notes.append(f"{step} skipped: its terms take {step.needs / 1e9:.1f} GB")
        elif start > until:
            run.notes.append(f"{step} skipped: no time was left")
        else:
            run.keep(*bench.points(step))
            say(f"{step}: {time.perf_counter() - start:.1f} s\n")


def _attempt(measure: Callable[[], Point]) -> Point:
    try:
        return measure()
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Point:
    first_line = (str(error).splitlines() or [""])[0]
    return {"error": f"{type(error).__name__}: {first_line}"}


_LEAST_MEMORY = 2048 * MB
_SHARE_OF_MEMORY = 0.7
_TIMES_CACHE = 2
"""What was read this many caches ago is not there anymore."""


@command(__doc__)
@click.option("--sizes", type=Numbers(), default=(1, 4, 16, 64, 256), help="Of a term, in MB (of 1,048,576 bytes).")
@click.option("--widths", type=Numbers(), default=(2, 3, 4, 6, 8, 12, 16, 24, 32), help="Of single folds.")
@click.option("--terms", type=Numbers(), default=(3, 8, 16, 31, 64, 128), help="Lengths of chains.")
@click.option("--dtypes", type=Words(tuple(ITEM_BYTES)), default=tuple(ITEM_BYTES), help="Of the terms.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=100.0, help="Begin nothing later; what is left is noted."
)
@json_option
def main(json_file: Path | None, seconds: float, **options: Any) -> None:
    """Runs the benchmark."""
    from fusioncache.backends.nvfuser.backend import nvfuser_problem

    problem = nvfuser_problem()
    if problem:
        raise click.UsageError(f"folds are measured on a CUDA device with nvFuser: {problem}")
    until = time.perf_counter() + seconds
    work = list(
        order_steps(
            [MB * size for size in options["sizes"]], *(options[name] for name in ("dtypes", "terms", "widths"))
        )
    )
    run = Run(Machine(**probe("nvfuser")), {**options, "seconds": seconds}, json_file)
    bench, copied = _bench(work)
    run.more["copy"] = copied
    measure_steps(work, bench, until, run)
    run.save()
    print_table("all chains: time over the floor, geometric mean", *summarize(run.points))
    for point in run.points:
        if "error" in point:
            print_line(f"error: {point['kind']} of {point['terms']}, {point['dtype']}: {point['error']}")
    for note in run.notes:
        print_line(f"note: {note}")
    sys.exit(1 if any("error" in point for point in run.points) else 0)


def summarize(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the rows of a table: for each plan its time over the floor, by the size of a term."""
    found: dict[str, dict[str, list[Point]]] = {}
    sizes: dict[str, None] = {}
    for point in points:
        if point["kind"] == "chain" and "way" in point:
            size_ = f"{point['dtype']}, {size(point['term_bytes'])}"
            sizes[size_] = None
            for name in point["plans"] if point["way"] == "folds" else [f"table {point['block']}/{point['ahead']}"]:
                found.setdefault(name, {}).setdefault(size_, []).append(point)
    rows = [[name, *(_mean_over_floor(by_size.get(each, ())) for each in sizes)] for name, by_size in found.items()]
    return ["<plan", *sizes], rows


def _mean_over_floor(points: Sequence[Point]) -> str:
    """Returns the geometric mean of the points; nothing if one failed, as means of others could not be compared."""
    if not points or any("error" in point for point in points):
        return ""
    return f"{geometric_mean(point['seconds']['run'] / point['seconds']['floor'] for point in points):.3f}"


def _bench(work: Sequence[Step]) -> tuple[Any, dict[str, float]]:
    """Returns what measures on this machine, and what a large copy takes here."""
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
    return [torch.rand(10, 10, device="cuda").to(torch.bfloat16) for _ in range(3)]


if __name__ == "__main__":
    main()
