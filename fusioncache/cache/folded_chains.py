"""Sums the residual chains of a template whose plan is ``fold``, and computes the rest of the template from the sums.

A chain is summed by folds: kernels that each add a fixed number of terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.ir import Graph
from fusioncache.template.plan import Arities, ChainFolds, fold


def prepare_folds(template: Graph, arities: Arities, args: Sequence[Any], compile_: Callable[[Graph], Run]) -> Run:
    """Returns a function that runs a template with folded chains. It has run once with these arguments.

    Args:
        template: has the chains.
        arities: the number of terms of each chain.
        args: the first arguments.
        compile_: returns a function of a graph, which compiles the graph for each layout of its arguments.

    Raises:
        Exception: any error of compiling.
    """
    folded, inputs = fold(template, arities), len(template.inputs)
    adders = [_make_adder(chain, compile_) for chain in folded.chains]
    core = folded.core
    compute = compile_(core.graph) if core.graph is not None else None

    def run(args: Sequence[Any]) -> Sequence[Any]:
        values = [*args[:inputs], *[add(args) for add in adders]]
        computed = compute([values[index] for index in core.arguments]) if compute else ()
        leaving = [*computed, *values[inputs:]]
        return [leaving[index] for index in core.results]

    run(args)
    return run


def _make_adder(chain: ChainFolds, compile_: Callable[[Graph], Run]) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that takes the template's arguments, and returns the sum of one of its chains."""
    steps = [(compile_(step.graph), step.terms.start, step.terms.stop) for step in chain.folds]

    def add(args: Sequence[Any]) -> Any:
        total = args[chain.head]
        for launch, start, stop in steps:
            (total,) = launch([total, *args[start:stop]])
        return total

    return add
