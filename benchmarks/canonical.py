"""Seconds from a region to its template's key, as the region gets larger.

- ``chain``: ``x = sin(x) + x``, again and again, on one input: as deep as a graph can be, and all of it shared.
- ``wide``: ``tanh`` of many inputs that nothing tells apart: as much symmetry as a graph can have.
- ``residual``: ``tanh`` of a sum of many inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from benchmarks.common.options import Numbers, command
from benchmarks.common.runner import print_table
from fusioncache.ir import Graph, Op, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key

_TYPE = TensorType("float32", (10, 10), "cuda")


def chain(ops: int) -> Graph:
    """Draws a region of ``x = sin(x) + x`` with this many ops."""
    written: list[Op] = []
    for _ in range(ops // 2):
        x = len(written)
        written += [Op("prims.sin", (Ref(x),), (_TYPE,)), Op("prims.add", (Ref(x + 1), Ref(x)), (_TYPE,))]
    return Graph((_TYPE,), tuple(written), (len(written),))


def wide(ops: int) -> Graph:
    """Draws a region of this many independent ops, each on an input of its own."""
    written = tuple(Op("prims.tanh", (Ref(value),), (_TYPE,)) for value in range(ops))
    return Graph((_TYPE,) * ops, written, tuple(range(ops, 2 * ops)))


def residual(ops: int) -> Graph:
    """Draws a region that sums its inputs, one op each, and takes ``tanh``."""
    sums = [Op("prims.add", (Ref(ops + i - 1 if i else 0), Ref(i + 1)), (_TYPE,)) for i in range(ops - 1)]
    return Graph((_TYPE,) * ops, (*sums, Op("prims.tanh", (Ref(2 * ops - 2),), (_TYPE,))), (2 * ops - 1,))


SHAPES: tuple[Callable[[int], Graph], ...] = (chain, wide, residual)


@command(__doc__)
@click.option("--ops", type=Numbers(), default=(1000, 10_000, 100_000), help="Sizes of the regions.")
def main(ops: tuple[int, ...]) -> None:
    """Runs the benchmark."""
    rows = [[str(count), *(f"{_time_key(shape(count)):.3f}" for shape in SHAPES)] for count in ops]
    columns = ("ops", *(shape.__name__ for shape in SHAPES))
    print_table("seconds from a region to its key", columns, rows)


def _time_key(region: Graph) -> float:
    start = time.perf_counter()
    make_key(canonicalize(region).graph, {})
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
