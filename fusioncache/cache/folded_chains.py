"""Sums the residual chains of a template whose plan is ``fold``, and computes the rest of the template from the sums.

A chain is summed by folds: kernels that each add a fixed number of terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.executable import OnBuild
from fusioncache.ir import Graph, Template
from fusioncache.ir.template import layouts_of
from fusioncache.template.plan import Arities, ChainFolds, fold

type Add = Callable[[Sequence[Any]], Any]
"""Returns the sum of one of a template's chains for the template's arguments."""


@dataclass(frozen=True, slots=True)
class FoldedChains:
    """The residual chains of one template.

    Attributes:
        template: has the chains.
        compiler: the backend, with its executables.
        on_build: called with each function that is compiled or loaded.
    """

    template: Template
    compiler: BackendExecutables
    on_build: OnBuild

    def prepare(self, args: Sequence[Any], arities: Arities) -> Run:
        """Returns a function that runs the template with folded chains. It has run once with these arguments.

        Raises:
            Exception: any error of compiling.
        """
        folded = fold(self.template.graph, arities)
        adders = [self._make_adder(chain) for chain in folded.chains]
        core, inputs = folded.core, len(self.template.graph.inputs)
        compute = self._make_launcher(core.graph) if core.graph is not None else None

        def run(args: Sequence[Any]) -> Sequence[Any]:
            values = [*args[:inputs], *[add(args) for add in adders]]
            computed = compute([values[index] for index in core.arguments]) if compute else ()
            leaving = [*computed, *values[inputs:]]
            return [leaving[index] for index in core.results]

        run(args)
        return run

    def _make_adder(self, chain: ChainFolds) -> Add:
        steps = [(self._make_launcher(step.graph), step.terms.start, step.terms.stop) for step in chain.folds]

        def add(args: Sequence[Any]) -> Any:
            total = args[chain.head]
            for launch, start, stop in steps:
                (total,) = launch([total, *args[start:stop]])
            return total

        return add

    def _make_launcher(self, graph: Graph) -> Run:
        executable, on_build = self.compiler.executable(graph), self.on_build
        return lambda args: executable.run_for(args, layouts_of(args), on_build)(args)
