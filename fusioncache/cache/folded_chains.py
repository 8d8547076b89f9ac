"""Sums the residual chains of a template whose plan is ``fold``, and computes the rest of the template from the sums.

A chain is summed in one launch if the backend has a working function for that, else by folds: kernels that each add a
fixed number of terms. The bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.api import Run, Sum
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.executable import OnBuild
from fusioncache.ir import Graph, Template
from fusioncache.ir.template import layouts_of
from fusioncache.observe.record.events import CompileEvent
from fusioncache.process.warning import logger, warn
from fusioncache.template.plan import Arities, ChainFolds, Plan, fold

type Add = Callable[[Sequence[Any]], Any]
"""Returns the sum of one of a template's chains for the template's arguments."""


@dataclass(frozen=True, slots=True)
class FoldedChains:
    """The residual chains of one template.

    Attributes:
        template: has the chains.
        compiler: the backend, with its executables.
        on_build: called with each function that is compiled or loaded.
        note_plan: called with arities and how the chains of such regions are summed.
    """

    template: Template
    compiler: BackendExecutables
    on_build: OnBuild
    note_plan: Callable[[Arities, str], None]

    def prepare(self, args: Sequence[Any], arities: Arities) -> Run:
        """Returns a function that runs the template with folded chains. It has run once with these arguments.

        Raises:
            Exception: any error of compiling.
        """
        folded = fold(self.template.graph, arities)
        adders = [self._make_adder(chain, args, arities) for chain in folded.chains]
        core, inputs = folded.core, len(self.template.graph.inputs)
        compute = self._make_launcher(core.graph) if core.graph is not None else None

        def run(args: Sequence[Any]) -> Sequence[Any]:
            values = [*args[:inputs], *[add(args) for add in adders]]
            computed = compute([values[index] for index in core.arguments]) if compute else ()
            leaving = [*computed, *values[inputs:]]
            return [leaving[index] for index in core.results]

        run(args)
        return run

    def _make_adder(self, chain: ChainFolds, args: Sequence[Any], arities: Arities) -> Add:
        folds, own = self._make_fold_adder(chain), self._find_own_sum(chain, args)
        if own is None:
            return folds
        self.note_plan(arities, "one launch")
        # Compiles the folds now: during the capture of a CUDA graph, where they may be needed, it would be too late.
        folds(args)
        head, start, stop = chain.head, chain.terms.start, chain.terms.stop

        def add(args: Sequence[Any]) -> Any:
            nonlocal own
            total, sum_ = None, own
            if sum_ is not None:
                try:
                    total = sum_(args[head], args[start:stop])
                except Exception as error:
                    self._report_failure(error)
                    self.note_plan(arities, Plan.FOLD.value)
                    own = None
            return folds(args) if total is None else total

        return add

    def _find_own_sum(self, chain: ChainFolds, args: Sequence[Any]) -> Sum | None:
        """Returns the backend's function to sum a chain of such arguments; None if it lacks one or fails."""
        terms = args[chain.terms.start : chain.terms.stop]
        try:
            return self.compiler.backend.sum_chain(chain.dtype, args[chain.head], terms, self._on_compile)
        except Exception as error:
            self._report_failure(error)
            return None

    def _report_failure(self, error: Exception) -> None:
        """Reports that folds replace the single launch.

        Raises:
            torch.OutOfMemoryError: if that is the error.
        """
        import torch

        if isinstance(error, torch.OutOfMemoryError):
            raise error
        name = self.template.name
        logger.info("summing a chain of %s in one launch failed", name, exc_info=error)
        if self.compiler.ledger.count_bypass(f"one launch failed: {type(error).__name__}", self.template):
            warn(f"residual chains are summed by folds, as one launch failed for {name}: {error}")

    def _make_fold_adder(self, chain: ChainFolds) -> Add:
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

    def _on_compile(self, seconds: float) -> None:
        """Counts the compilation of the backend's own function to sum chains."""
        event = CompileEvent(self.compiler.backend.name, seconds, template=self.template)
        self.compiler.ledger.count_build(self.template, event)
