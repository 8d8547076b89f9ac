"""The ways to sum a chain, as functions of its tensors: head first, then the terms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.folds.spec import SUM, Widths
from fusioncache.backends.api import Backend
from fusioncache.ir import Const, Graph, Op, Ref, TensorType
from fusioncache.ir.ops import RESIDUAL
from fusioncache.template.plan import inline

Tensors = Sequence[Any]
Sum = Callable[[Tensors], Any]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to sum a chain, with nothing left to compile.

    Attributes:
        call: takes head and terms, returns the sum.
        compile_seconds: of all that it needs, whether or not another way had it compiled before.
        launches: kernels of a call.
    """

    call: Sum
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

    def way(self, widths: Widths, args: Tensors) -> Way:
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
        return Way(_chain(steps), sum(graphs.values()), len(steps))

    def _fold(self, graph: Graph, args: Tensors) -> _Fold:
        found = self._compiled.get(graph)
        if found is None:
            self._synchronize()
            start = time.perf_counter()
            run = self._backend.compile(graph, args)
            self._synchronize()
            found = self._compiled[graph] = _Fold(run, time.perf_counter() - start)
        return found


def _chain(folds: Sequence[tuple[_Fold, int, int]]) -> Sum:
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

    def way(self, args: Tensors, block: int, ahead: int) -> Way:
        """Returns the kernel with these constants. A call makes the table, too."""
        from fusioncache.backends.nvfuser.pointer_table import launch, pointer_table

        self._synchronize()
        start = time.perf_counter()
        launch(args[0], pointer_table(args[1:]), block, ahead)
        self._synchronize()
        seconds = time.perf_counter() - start
        # Every number of terms and elements has the same kernel, as long as a block divides these or none does.
        seconds = self._seconds.setdefault((args[0].dtype, args[1].dtype, block, ahead), seconds)
        return Way(lambda args: launch(args[0], pointer_table(args[1:]), block, ahead), seconds, 1)

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
    import torch

    total = args[0].to(torch.float32, copy=True)
    for term in args[1:]:
        total += term
    return total
