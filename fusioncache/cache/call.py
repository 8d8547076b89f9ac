"""Calls of templates from a trace, for any argument layouts and any number of residual terms.

The hot path maps a call's arguments to the function compiled for their layout. It consists of closures, because each
attribute lookup there costs time in every call of every region.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.backends.eager import run_one_by_one
from fusioncache.backends.torch_settings import is_device_lost, is_out_of_memory
from fusioncache.cache.backend_executables import BackendExecutables, BuildRequest
from fusioncache.cache.executable import BuiltFunction, Executable, RejectedRegion, reorder
from fusioncache.cache.folded_chains import prepare_folds
from fusioncache.cache.generals import Generation, Piece, ServedGeneral
from fusioncache.cache.peers import StoreRequest
from fusioncache.cache.results import with_torch_layouts
from fusioncache.ir import Graph, Instance, NumberType, Scope, Template, TensorType, is_declined
from fusioncache.ir.ops import RESIDUAL, draws, may_run_again, shaping_inputs
from fusioncache.ir.template import ArgumentLayouts, layouts_of
from fusioncache.observe.record.events import CompileEvent
from fusioncache.observe.record.observations import ANY_SIZES, ThunderCost
from fusioncache.process.collector import without_collector
from fusioncache.process.warning import logger, progress_line, warn
from fusioncache.template.generalization import identity_instance
from fusioncache.template.plan import Arities, Plan, fold, inline
from fusioncache.template.strides import contiguous_layouts, depends_on_operand_order

_MOST_LAYOUTS = 1024

Begin = Callable[[Sequence[Any], tuple[int, ...] | None], tuple[Run, Sequence[Any]]]
"""Prepares and runs the first call for a new layout. Takes the arguments, and the arities or None; returns the function
for this layout, and the results of this call."""

Dispatcher = Callable[..., Sequence[Any]]
"""Takes a template's arguments and returns its outputs."""


def make_dispatcher(graph: Graph, *, takes_arities: bool, begin: Begin) -> Dispatcher:
    """Returns the function that a trace calls: it runs the function for its arguments' layout, or calls ``begin``."""
    if takes_arities or graph.sizes or any(isinstance(type_, NumberType) for type_ in graph.inputs):
        return _dispatch_by_all(graph, takes_arities, begin)
    if all(_strides_follow_from_contiguity(type_) for type_ in graph.inputs):
        return _dispatch_by_contiguity(begin)
    return _dispatch_by_strides(begin)


def _strides_follow_from_contiguity(type_: Any) -> bool:
    """True if contiguity determines the strides; it does not for dimensions of size 0 or 1, which may have any."""
    return isinstance(type_, TensorType) and all(isinstance(size, int) and size > 1 for size in type_.shape)


def _dispatch_by_contiguity(begin: Begin) -> Dispatcher:
    """Returns a dispatcher that checks first if all tensors are contiguous, at half the cost of reading strides."""
    is_contiguous, dispatch_others = torch.Tensor.is_contiguous, _dispatch_by_strides(begin)
    contiguous: dict[int, Run] = {}

    def dispatch(*args: Any) -> Sequence[Any]:
        if all(map(is_contiguous, args)):
            run = contiguous.get(len(args))
            if run is None:
                contiguous[len(args)], results = begin(args, None)
                return results
            return run(args)
        return dispatch_others(*args)

    return dispatch


def _dispatch_by_strides(begin: Begin) -> Dispatcher:
    stride = torch.Tensor.stride
    runs: dict[Any, Run] = {}

    def dispatch(*args: Any) -> Sequence[Any]:
        layout = tuple(map(stride, args))
        run = runs.get(layout)
        return run(args) if run else _remember(runs, layout, begin(args, None))

    return dispatch


def _dispatch_by_all(graph: Graph, takes_arities: bool, begin: Begin) -> Dispatcher:
    """Returns a dispatcher for any graph. It takes arities (if any), then numbers, then tensors."""
    numbers = sum(isinstance(type_, NumberType) for type_ in graph.inputs)
    shaping = shaping_inputs(graph)
    stride, size = torch.Tensor.stride, torch.Tensor.size
    runs: dict[Any, Run] = {}

    def dispatch(*args: Any) -> Sequence[Any]:
        arities, args = (args[0], args[1:]) if takes_arities else (None, args)
        tensors = args[numbers:]
        layout = (arities, *map(stride, tensors), *map(size, tensors), *[args[index] for index in shaping])
        run = runs.get(layout)
        return run(args) if run else _remember(runs, layout, begin(args, arities))

    return dispatch


def _remember(runs: dict[Any, Run], layout: Any, begun: tuple[Run, Sequence[Any]]) -> Sequence[Any]:
    if len(runs) >= _MOST_LAYOUTS:
        runs.clear()
    runs[layout], results = begun
    return results


type _Failure = tuple[str, Exception]
"""What failed, as one word, and its error."""


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The function that a trace calls in place of a region: a template, or a template with verified results.

    Attributes:
        template: the template that is called.
        name: the name of the function in the trace.
        function: the callable.
        takes_arities: whether a call starts with the tuple of arities.
    """

    template: Template
    name: str
    function: Dispatcher
    takes_arities: bool

    def __post_init__(self) -> None:
        self.function.__name__ = self.function.__qualname__ = self.name
        self.function.name = self.name  # type: ignore[attr-defined]  # read by users of thunder.examine


@dataclass(frozen=True, slots=True)
class Fallback:
    """A region as Thunder made it, to be called with its template's arguments.

    Attributes:
        call: takes the region's inputs and returns its outputs.
        inputs: for each input of the region, the position of the template's argument; None for an input that the
            region does not use.
        outputs: for each output of the template, the position of the region's output.
        executor: the name of Thunder's executor that made the region.
    """

    call: Callable[..., Sequence[Any]]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    executor: str = ""

    @property
    def avoids_dynamo(self) -> bool:
        """Whether it may work after a compiler failed: nvFuser does not use Dynamo, which other executors do."""
        return self.executor == "nvfuser"

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        """Returns the template's outputs."""
        results = self.call(*(None if position is None else args[position] for position in self.inputs))
        return [results[position] for position in self.outputs]


@dataclass(eq=False, slots=True)
class AllowedRegions:
    """Regions with the same arities, for which ``TemplateCall.allow`` allowed calls of a template.

    Attributes:
        arities: the number of terms of each of their residual chains.
        plan: how the chains are summed.
        fallback: one of the regions, as Thunder made it.
        instance: the same region in the terms of the template; None if not known.
        layouts: the foreseen layouts of the arguments.
        operations: runs one of the regions operation by operation; None until needed.
        source: the graph of the function for any sizes that serves the regions; None if none does.
    """

    arities: Arities
    plan: Plan
    fallback: Fallback
    instance: Instance | None
    layouts: tuple[ArgumentLayouts, ...] = ()
    operations: Run | None = None
    source: Graph | None = None


@dataclass(frozen=True, slots=True)
class _FirstCall:
    """A call with arguments of a new layout.

    Attributes:
        args: tensors and numbers, in the order of the template.
        layouts: of ``args``.
        regions: the regions with the arities of the call.
        failures: failures so far.
    """

    args: Sequence[Any]
    layouts: ArgumentLayouts
    regions: AllowedRegions
    failures: list[_Failure] = field(default_factory=list)


class TemplateCall:
    """A template that is ready to be called.

    Its argument order is that of ``Binding.arguments``. A template with several residual chains takes their arities
    first, as one tuple, because the number of arguments does not determine them.

    Args:
        template: the template to call.
        executables: of the backend that compiles it.
        name: in a trace; by default the template's.
        called: called with the template at the end of each first call for a layout: only then it is known what had to
            be compiled.
        generation: the program that calls it first, if known.
        count_left: returns the number of other templates that were never called.

    Attributes:
        template: the template to call.
        begun: whether it was called.
        target: the callable for a trace.
        compiler: the backend and its executables.
    """

    def __init__(
        self,
        template: Template,
        executables: BackendExecutables,
        name: str | None = None,
        called: Callable[[Template], None] | None = None,
        generation: Generation | None = None,
        count_left: Callable[[], int] = lambda: 0,
    ):
        self.template = template
        self.begun = False
        self.compiler = executables
        self._ledger = executables.ledger
        self._called = called
        self._generation = generation
        self._count_left = count_left
        self._regions: dict[Arities, AllowedRegions] = {}
        self._instances: dict[Arities, Instance | None] = {}
        self._rejected: set[Run] = set()
        self._chains = sum(op.name == RESIDUAL for op in template.graph.ops)
        function = make_dispatcher(template.graph, takes_arities=self._chains > 1, begin=self._begin)
        self.target = CallTarget(template, name or template.name, function, takes_arities=self._chains > 1)

    def allow(self, arities: Arities, plan: Plan, fallback: Fallback, instance: Instance | None = None) -> None:
        """Allows calls for regions with these arities, and stores one such region. Later ones change nothing."""
        instance = self._instances.setdefault(arities, instance)
        self._regions.setdefault(arities, AllowedRegions(arities, plan, fallback, instance))

    def claim_all(self, instances: Mapping[Arities, Instance]) -> bool:
        """Assigns these regions to this call. Returns False and assigns none if one differs from an earlier one.

        The first region with given arities fixes how the call is compiled, and later regions must equal it. Regions
        that write their template in different ways need separate calls: if the layouts of their operands differ, they
        are compiled differently.
        """
        if any(self._instances.get(arities, instance) != instance for arities, instance in instances.items()):
            return False
        self._instances.update(instances)
        return True

    def allowed(self) -> tuple[AllowedRegions, ...]:
        """Returns the regions for which calls are allowed."""
        return tuple(self._regions.values())

    def arities(self) -> tuple[Arities, ...]:
        """Returns the numbers of residual terms that calls may have."""
        return tuple(self._regions)

    def executables(self, arities: Arities) -> list[Executable]:
        """Returns the executables of a call with these arities, in order of use.

        Compiles nothing. Adds the source of a function for any sizes to the executable that the function serves.
        """
        regions = self._regions[arities]
        if regions.plan is Plan.INLINE:
            graph = inline(self.template.graph, arities)
            executable = self.compiler.executable(graph, self._compiled_instance(arities))
            if regions.source is not None:
                executable.add_source(regions.source)
            return [executable]
        folded = fold(self.template.graph, arities)
        graphs = [step.graph for chain in folded.chains for step in chain.folds]
        return [self.compiler.executable(graph) for graph in [*graphs, folded.core.graph] if graph is not None]

    def foresee(self, arities: Arities, layouts: ArgumentLayouts) -> list[StoreRequest]:
        """Stores these argument layouts. Returns the store requests of the first call with them.

        For folds, only requests with contiguous terms are foreseen.
        """
        regions = self._regions[arities]
        if layouts not in regions.layouts:
            regions.layouts = (*regions.layouts, layouts)
        graph = inline(self.template.graph, arities)
        if regions.plan is Plan.INLINE or depends_on_operand_order(graph, layouts):
            instance = self._compiled_instance(arities)
            return self.compiler.foresee(graph, instance, self._generation, layouts)
        if layouts != contiguous_layouts(graph):
            return []
        requests = (one.foresee(contiguous_layouts(one.graph) or ()) for one in self.executables(arities))
        return [request for request in requests if request is not None]

    def _begin(self, args: Sequence[Any], arities: Arities | None) -> tuple[Run, Sequence[Any]]:
        if arities is None:
            arities = (len(args) - len(self.template.graph.inputs),) if self._chains else ()
        self.begun = True
        call = _FirstCall(args, layouts_of(args), self._regions[arities])
        with progress_line().show(self._describe_compiling), without_collector():
            run = self._prepare(call)
        start = time.perf_counter()
        run, results = self._execute(run, call)
        instance = call.regions.instance
        if instance is not None and self.compiler.backend.lays_out_as_torch:
            run, results = with_torch_layouts(run, instance, args, results)
        seconds = time.perf_counter() - start
        for failure in call.failures:
            self._report_failure(failure, run, call.regions)
        self._ledger.history.add_seconds("first_execution", seconds)
        if self._called:
            self._called(self.template)
        return run, results

    def _describe_compiling(self) -> str:
        return f"compiling {self.template.name} with {self.compiler.backend.title}, {self._count_left()} left"

    def _execute(self, run: Run, call: _FirstCall) -> tuple[Run, Sequence[Any]]:
        """Runs the prepared function, or its substitute if it fails. Returns the function that ran and its results."""
        try:
            return run, run(call.args)
        except Exception as error:  # a function compiled for other sizes may fail with these
            if run is call.regions.operations or not may_run_again(self.template.graph):
                raise
            if is_out_of_memory(error) or is_device_lost():
                raise
            rejection = self._reject_launch(run, call, error)
            if rejection is not None:
                other = self._run_rejected(call, rejection)
            else:
                call.failures.append(("fallback" if run is call.regions.fallback else "compile", error))
                other = self._fall_back(call, run)
            return self._execute(other, call)

    def _prepare(self, call: _FirstCall) -> Run:
        try:
            if self._can_fold(call.regions, call.layouts):
                return prepare_folds(self.template.graph, call.regions.arities, call.args, self._compile_part)
            return self.compiler.run_for(call.args, self._request(call.regions, call.layouts))
        except torch.OutOfMemoryError:
            raise
        except RejectedRegion as rejection:
            return self._run_rejected(call, rejection)
        except Exception as error:
            if is_declined(error, Scope.REGION):
                return self._bypass(call.regions, error.reason)
            call.failures.append(("compile", error))
            return self._fall_back(call)

    def _compile_part(self, graph: Graph) -> Run:
        """Returns the function of a fold or of the rest of the template, compiled for each layout of its arguments."""
        executable, on_build = self.compiler.executable(graph), self._on_build
        return lambda args: executable.run_for(args, layouts_of(args), on_build)(args)

    def _run_rejected(self, call: _FirstCall, rejection: RejectedRegion) -> Run:
        """Returns a function that runs a rejected region in pieces, or else operation by operation."""
        try:
            if not may_run_again(self.template.graph):  # each piece is run to make the next one's arguments
                raise rejection
            request = self._request(call.regions, call.layouts)
            run, pieces = self.compiler.run_rejected(call.args, request, rejection)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            call.failures.append(("compile", error))
            return self._run_operations(call)
        self._report_rejection(call.regions.arities, rejection, pieces)
        self._rejected.add(run)
        return run

    def _reject_launch(self, run: Run, call: _FirstCall, error: Exception) -> RejectedRegion | None:
        """Returns the rejection of a compiled function that failed when it first ran; None for any other function."""
        if run is call.regions.fallback or run in self._rejected:
            return None
        return self.compiler.reject_launch(self._request(call.regions, call.layouts), error)

    def _report_rejection(self, arities: Arities, rejection: RejectedRegion, pieces: Sequence[Piece]) -> None:
        """Reports how a rejected region runs: in pieces, of which some are compiled."""
        title, digest = self.compiler.backend.title, self.template.key.digest
        compilers = " and ".join(dict.fromkeys(title if piece.is_compiled else "torch" for piece in pieces))
        number = f" in {len(pieces)} pieces" if len(pieces) > 1 else ""
        reason = f"rejected by {title}: runs{number} by {compilers}"
        logger.info("%s is %s: %s", self.template.name, reason, rejection)
        self._note(arities, reason=reason)
        if self._ledger.count_bypass(reason, self.template):
            lines = self._ledger.history.find_source(digest, arities).lines
            where = f" ({lines[0]})" if lines else ""
            warn(f"{self.template.name}{where} is {reason}. {title} says: {rejection}")

    def _can_fold(self, regions: AllowedRegions, layouts: ArgumentLayouts) -> bool:
        """True if folds can sum such arguments: folds may reorder operands, which some layouts make visible."""
        if regions.plan is Plan.INLINE:
            return False
        return not depends_on_operand_order(inline(self.template.graph, regions.arities), layouts)

    def _request(self, regions: AllowedRegions, layouts: ArgumentLayouts) -> BuildRequest:
        def on_general(served: ServedGeneral, *, whole: bool = True) -> None:
            if whole:
                regions.source = served.source
                self._note(regions.arities, plan=ANY_SIZES)
            self._on_general(served)

        graph, instance = inline(self.template.graph, regions.arities), self._compiled_instance(regions.arities)
        return BuildRequest(graph, layouts, self._on_build, on_general, self._generation, instance)

    def _compiled_instance(self, arities: Arities) -> Instance | None:
        """Returns the region that is compiled; None if not known."""
        instance = self._regions[arities].instance
        return None if instance is None else instance.compiled

    def _fall_back(self, call: _FirstCall, failed: Run | None = None) -> Run:
        """Returns the region as Thunder made it if that may work, else a function that runs its operations one by one.

        Forward and backward must draw random numbers from one generator, so a region that draws falls back to Thunder's
        function. A region that writes into its inputs is not compiled by a second compiler: it may have written before
        the first one failed.
        """
        fallback, graph = call.regions.fallback, self.template.graph
        may_work = draws(graph) or (fallback.avoids_dynamo and may_run_again(graph))
        return fallback if may_work and failed is not fallback else self._run_operations(call)

    def _run_operations(self, call: _FirstCall) -> Run:
        regions = call.regions
        instance = regions.instance or identity_instance(inline(self.template.graph, regions.arities))
        run = reorder(run_one_by_one(instance.region), instance, len(call.args))
        regions.operations = regions.operations or run
        return regions.operations

    def _report_failure(self, failure: _Failure, run: Run, regions: AllowedRegions) -> None:
        """Reports a failure after a substitute ran. If every substitute fails too, it is the model's own error."""
        name, (what, error) = self.template.name, failure
        logger.info("compiling %s failed", name, exc_info=error)
        reason = f"{what} failed: {type(error).__name__}"
        self._note(regions.arities, reason=reason)
        if self._ledger.count_bypass(reason, self.template):
            how = "as Thunder made it" if run is regions.fallback else "operation by operation"
            warn(f"{name} could not be compiled and runs {how}: {error}")

    def _bypass(self, regions: AllowedRegions, reason: str) -> Run:
        """Returns the region as Thunder made it, because its function may not be shared under the current settings."""
        logger.info("%s bypassed: %s", self.template.name, reason)
        self._note(regions.arities, reason=reason)
        self._ledger.count_bypass(reason, self.template)
        return regions.fallback

    def _note(self, arities: Arities, **fields: str) -> None:
        self._ledger.history.amend_regions(self.template.key.digest, arities, **fields)

    def _on_build(self, executable: Executable, built: BuiltFunction[Run]) -> None:
        """Counts a function that was compiled or loaded."""
        loaded = built.loaded and not built.compiled_here
        self._count(built, loaded, graph=executable.graph, helped=built.helped)

    def _on_general(self, served: ServedGeneral) -> None:
        """Counts that a function for any sizes serves the template; counts the function too if it is new."""
        built = served.built
        if not served.is_new:
            self._ledger.count_general_hit(self.template, self._alone(built.cost, built.loaded))
            return
        self._count(built, built.loaded and not built.compiled_here, general=True, helped=built.helped)
        if not served.is_first or (built.loaded and not (built.helped or built.compiled_here)):
            self._ledger.count_general_hit(self.template)
        else:
            self._ledger.count("generalizations")

    def _count(self, built: BuiltFunction[Any], loaded: bool, **fields: Any) -> None:
        event = CompileEvent(
            backend=self.compiler.backend.name,
            seconds=built.seconds,
            loaded=loaded,
            compile_seconds=built.compile_seconds,
            template=self.template,
            key=built.key,
            cost=self._alone(built.cost, loaded),
            **fields,
        )
        self._ledger.count_build(self.template, event)

    def _alone(self, seconds: float, loaded: bool) -> ThunderCost:
        return self.compiler.backend.estimate_cost(seconds, len(self.template.graph.ops), loaded=loaded)
