"""The transform that users register: from the regions of a trace to calls of templates.

A region travels once through, each stage gives the next one a value:

    fused bound symbol -> ``Region`` -> (``Template``, ``Binding``) -> ``TemplateCall`` -> bound symbol of the call

The call compiles what it needs when it is first called: see ``cache/call.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cache as remember
from typing import Any

from fusioncache.accelerators.graphs.graph_capture import make_graphs
from fusioncache.accelerators.precompile.ahead import find_helpers
from fusioncache.accelerators.precompile.batch import find_batch_compiler
from fusioncache.accelerators.precompile.jobs import choose_jobs
from fusioncache.accelerators.programs import ahead
from fusioncache.accelerators.programs.programs import ProgramKeeper, ProgramTemplates
from fusioncache.accelerators.residual.chaining import Compilers
from fusioncache.accelerators.residual.plans import Choice, ResidualPlan
from fusioncache.accelerators.residual.recompute import PlannedStreams, ResidualOptions, plan_streams
from fusioncache.accelerators.schedule.resharding import gather_again
from fusioncache.accelerators.schedule.scheduling import CollectiveOptions, CollectivePasses
from fusioncache.accelerators.schedule.timeline import Placement
from fusioncache.accelerators.steps.lean_steps import LeanSteps
from fusioncache.accelerators.steps.prologue.quickening import quicken_last
from fusioncache.backends.api import check_fold
from fusioncache.backends.registry import make_backend, problem
from fusioncache.cache.cache import Cache, default_cache
from fusioncache.cache.call import TemplateCall
from fusioncache.cache.helpers import Helpers
from fusioncache.cache.sizes import Generation, Sizes
from fusioncache.ir import Scope, Template, is_declined
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.stats import Stats
from fusioncache.process.warning import warn, warn_once
from fusioncache.template.canonical import canonicalize
from fusioncache.template.instance import instance_of
from fusioncache.template.plan import Arities, Plan, choose_plan
from fusioncache.thunder_adapter.api import Transform, get_compile_data
from fusioncache.thunder_adapter.capabilities import find_off
from fusioncache.thunder_adapter.installation import install, install_more
from fusioncache.thunder_adapter.version import read_digest
from fusioncache.thunder_adapter.versions import explain_limits, explain_unusable
from fusioncache.transform import dynamo_graphs, grouped_products
from fusioncache.transform.accelerators import Options, find_unwanted
from fusioncache.transform.dynamo_account import StepAccount
from fusioncache.transform.dynamo_frames import keep_dynamo_out
from fusioncache.transform.executors import origin_of, why_unfused
from fusioncache.transform.foresight import Foresight
from fusioncache.transform.generations import Generations
from fusioncache.transform.graph_names import graph_names_of_process
from fusioncache.transform.handover import ForwardState, Handover
from fusioncache.transform.layouts import plain_region_of
from fusioncache.transform.provenance.misses import Misses, should_explain
from fusioncache.transform.provenance.trace_notes import TraceNotes, begin_notes
from fusioncache.transform.region import region_of
from fusioncache.transform.region_backends import RegionBackends, name_backend
from fusioncache.transform.rewrite import call_of, replace_symbols
from fusioncache.transform.shared_region import SharedRegion, Sharing, arities_by_template, fallback_of, site_of
from fusioncache.transform.templates import TemplateCalls
from fusioncache.transform.vector_probing import share_vector_probes
from fusioncache.verification.verified_templates import VerifiedTemplates
from fusioncache.verification.verifier import Verifier, When, choose_when

logger = logging.getLogger("fusioncache")

_PLANS: Mapping[ResidualPlan | None, Plan] = {ResidualPlan.INLINE: Plan.INLINE, ResidualPlan.FOLD: Plan.FOLD}


class FusionCache(Transform):
    """Compiles each fusion region's template once.

    Register it with ``thunder.jit(model, transforms=[fusioncache.FusionCache()])``. What it cannot share it leaves as
    Thunder made it, and counts why. In a version of Thunder that was not tried, regions share templates, and the first
    call of each template is verified. An accelerator is on there if what it relies on is known or passes a probe.

    A region is compiled at the first call with arguments that lie in this way, under the settings that torch and
    TorchInductor have then, and what is compiled is shared under equal settings only. Later calls use it whatever the
    settings are, until Thunder traces again. Where a setting cannot be compared, such as a custom pass of
    TorchInductor's without a ``uuid``, regions stay as Thunder made them.

    From the first one on the process has what Thunder lacks to train with grouped products, so that a layer of experts
    is one program for any routing: see ``grouped_products.py``.

    Args:
        cache: where templates are kept; by default one cache that the whole process shares.
        backend: ``"nvfuser"``, ``"inductor"``, ``"eager"``, or ``"auto"``: the compiler that the region was made for,
            where there is one, else the best that works here.
        recompute: ``"residual"`` saves no sum of a residual stream for backward that can be rebuilt there from other
            saved values, bit for bit. Outputs and gradients stay the same. Under TorchInductor, which rounds bfloat16
            and float16 only where a kernel stores them, such sums are saved as before.
        residual: how the sums of a residual stream come about that some rematerialization made regions recompute, or
            ``recompute`` does: ``"inline"``, ``"fold"``, ``"carry"``, ``"segmented"``, or ``"auto"``, the least memory
            at a price that is linear in depth.
        memory_budget: with ``"auto"`` and ``"segmented"``: how many bytes of one stream's sums may be kept alive.
        fold: what sums a long chain that is folded: ``"nvfuser"``, kernels of a few fixed widths; ``"triton"``, one
            launch for any number of terms, where it can; ``"auto"``, that where it is faster. The bits are the same.
        fast_tracing: whether to take detours out of Thunder's tracing, which takes most of a first step once compiling
            does not. Traces stay the same. It changes functions of Thunder in the whole process:
            ``fusioncache.tracing.uninstall()`` gives Thunder its own back.
        verify: whether each region is compiled on its own as well, and what its template computes compared with that,
            in its first call for each layout, or with ``"all"`` in every call; a difference raises a
            ``fusioncache.VerificationError``. ``stats()`` counts what was verified. None asks the environment:
            ``FUSIONCACHE_VERIFY`` is 0, 1 or ``all``.
        explain: whether to say of each new template that had to be compiled, on stderr and once it was, which template
            is nearest and which ingredient keeps them apart; those that were loaded are one line. None asks the
            environment: ``FUSIONCACHE_EXPLAIN`` is 0 or 1.
        jobs: the number of background processes, which compile what the store lacks as soon as a trace is ready. None
            asks the environment, ``FUSIONCACHE_JOBS``; the default is some where nvFuser has the cores for it, and 0
            in verify mode, with few cores, or without a store.
        schedule: ``"auto"`` moves the collectives of a model that ranks share by Thunder's ``fsdp`` or ``ddp`` to where
            they run beside what is computed: gathers in order of need, reduces behind the gradients that they add up.
            With ``FSDPType.ZERO3`` shards are saved for backward, which gathers them again. Every bit stays the same.
            ``"thunder"`` leaves all as Thunder has it: gathers first, reduces last, gathered parameters saved.
        lean: ``"auto"`` leaves out of a later step what changes nothing: functions of Thunder's around each call of a
            module, views and products in its programs that are computed twice or in a roundabout way, and copies
            of what rows are written into. Every bit stays the same. ``"thunder"`` leaves all as Thunder has it.
        in_flight_bytes: with ``schedule="auto"``: how many bytes of gathers, and as many of reduces, may be under way
            at a time. None is 512 MiB.
        bucket_bytes: with ``schedule="auto"``: how many bytes of gathers, and of reduces between two ranks, may be
            coalesced, each straight into its own memory. None is a sixteenth of all, 256 MiB at most. Reduces among
            more ranks are not coalesced, because that may change their bits, and neither is anything but over NCCL.
        programs: whether what Thunder makes of a model is kept in the store, so that a later process need not trace it
            again. It is used where everything that it depends on is equal. ``stats()`` counts what was loaded and what
            was made, and why something was neither. None asks the environment: ``FUSIONCACHE_PROGRAMS`` is 0 or 1, and
            1 by default. Nothing is loaded or kept without ``fast_tracing`` or without a store.
        sizes: which regions that differ only in sizes share a compilation. ``"auto"``: those of one function. Its first
            program is compiled as it is; what a later one has with other sizes is compiled for any sizes, and serves
            those that come. ``"dynamic"``: any, also of different functions and of one program. ``"static"``: none.
            ``stats()`` counts them, and why some are compiled for one size only. None asks the
            environment: ``FUSIONCACHE_SIZES`` is one of these, and ``auto`` by default.
        graphs: whether forward and backward are captured in CUDA graphs and replayed. Outputs are copied then,
            gradients are not. None asks the environment: ``FUSIONCACHE_GRAPHS`` is 0 or 1, by default 0.
        accelerators: the names of those that may be used: ``"programs"``, ``"sizes"``, ``"tracing"``, ``"lean steps"``,
            ``"graphs"``, ``"schedule"``, ``"residual"``, ``"precompile"``. Each other one is off, whatever its own
            options say. None asks the environment: ``FUSIONCACHE_ACCELERATORS`` has names with commas between them,
            or is ``none``; by default all may be used. ``"programs"`` needs ``"tracing"``.

    Raises:
        TypeError: if ``cache`` is no ``fusioncache.Cache``, or ``verify``, ``explain``, ``jobs``, ``programs`` or
            ``graphs`` is none of these.
        ValueError: if the backend is unknown or does not work here, or another option is none of the above.
    """

    def __init__(
        self,
        *,
        cache: Cache | None = None,
        backend: str = "auto",
        recompute: str | None = None,
        residual: str = "auto",
        memory_budget: int | None = None,
        fold: str = "auto",
        fast_tracing: bool = True,
        verify: bool | str | None = None,
        explain: bool | None = None,
        jobs: int | None = None,
        programs: bool | None = None,
        sizes: str | None = None,
        graphs: bool | None = None,
        accelerators: Collection[str] | None = None,
        schedule: str = "auto",
        lean: str = "auto",
        in_flight_bytes: int | None = None,
        bucket_bytes: int | None = None,
    ):
        super().__init__()
        self._limits, self._unusable = explain_limits(), explain_unusable()
        moving = CollectiveOptions.of(schedule, in_flight_bytes, bucket_bytes)
        streams = ResidualOptions.of(recompute, residual, memory_budget)
        wanted = Options.of(fast_tracing, programs, sizes, graphs, lean, moving, streams, jobs)
        options = wanted.without(find_unwanted(accelerators) | (find_off().keys() if self._limits else set()))
        when, explains = choose_when(verify), should_explain(explain)
        when = when or When.TEMPLATE if self._limits else when
        self._options = options.residual
        self.lean = LeanSteps(options.lean, lambda taken: self._ledger.count_taken_out(taken), self._report_failure)
        self._collectives = CollectivePasses(options.schedule, self.report_left, self._report_failure)
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"cache must be a fusioncache.Cache, got {type(cache).__name__}")
        self.cache = default_cache() if cache is None else cache
        if reason := self._unusable or self._limits:
            warn_once(reason)
        if backend != "auto" and not self._unusable:
            make_backend(backend)
        self.backend = backend
        check_fold(fold)
        self._fold = fold
        install_more("grouped products", grouped_products.replacements)
        install_more("rematerialization")
        dynamo_graphs.separate_graphs()
        keep_dynamo_out()
        if options.tracing:
            install()
        self._ledger = Ledger(self.cache.ledger)
        self.step_account = StepAccount(self._ledger, self.cache.ledger)
        self._misses = Misses(self.cache) if explains else None
        if self._misses:
            self._ledger.observers.append(self._misses.note_compile)
        self._backends = RegionBackends(backend, fold, self.cache, self._ledger, options.sizes)
        self._generations = Generations()
        self._calls = TemplateCalls(self._count_first_call)
        self._choices: list[Choice] = []
        self._handover = Handover()
        verified = VerifiedTemplates(self.cache.store, read_digest())
        self._verifier = Verifier(when, self._ledger, self.cache.append, verified) if when else None
        compiler = "" if self._unusable else name_backend(backend)
        if compiler == "eager" and backend == "auto":
            warn_once(f"regions run operation by operation, as {problem('inductor', 'cpu')}")
        self._helpers = self._find_helpers(options, when, compiler)
        if options.tracing and compiler:
            share_vector_probes()
        compares = when in (When.FIRST, When.EVERY)
        self.program_keeper: ProgramKeeper | None = None
        if options.programs and options.tracing and compiler:
            self.program_keeper = self._make_keeper(explains, compares, options.sizes is not Sizes.STATIC)
        self.graphs = make_graphs(options.graphs, self._ledger, verifies=compares) if compiler else None
        if self.graphs:
            install_more("stored programs")

    def _find_helpers(self, options: Options, when: When | None, compiler: str) -> Helpers | None:
        """Returns what compiles beside or before calls; None if each call compiles for itself."""
        processes = choose_jobs(options.jobs, "" if when in (When.FIRST, When.EVERY) else compiler)
        if not (compiler and options.precompiles):
            return None
        return find_helpers(self.cache, processes, compiler) or find_batch_compiler(self.cache, compiler)

    def _make_keeper(self, explains: bool, verifies: bool, replays: bool) -> ProgramKeeper:
        """Returns the keeper of stored programs, with Thunder's functions replaced that it needs.

        Args:
            explains: whether it says why programs are not loaded.
            verifies: whether templates are verified.
            replays: whether programs of further lengths are filled in.
        """
        install_more("stored programs")
        if replays:
            install_more("sizes")
        templates = ProgramTemplates(self.cache, self._backends, self._calls, self._helpers, self._generations)
        return ProgramKeeper(self.cache, self._ledger, templates, explains=explains, verifies=verifies, replays=replays)

    def stats(self) -> Stats:
        """Returns what this transform has done so far."""
        return self._ledger.stats()

    def cache_key(self) -> str:
        """Returns what the programs depend on that this transform takes part in, beside what it is given: its options.

        What else decides over a region is in the templates' keys, which a stored program names. Verify mode is not
        among them: nothing that it adds to a trace is stored.
        """
        compiler = "" if self._unusable else name_backend(self.backend)
        options = f"{self._options} {self._collectives.options} lean={self.lean.option}"
        return f"backend={self.backend} ({compiler}) fold={self._fold} {options}"

    def calls(self) -> tuple[TemplateCall, ...]:
        """Returns the templates that the traces seen so far call: once for each way in which regions write them."""
        return self._calls.all()

    def choices(self) -> tuple[Choice, ...]:
        """Returns how the sums of each residual stream come about, and what the alternatives would cost.

        These are those of the traces made here. The streams of a program that was loaded are in the record alone.
        """
        return tuple(self._choices)

    def placements(self) -> tuple[Placement, ...]:
        """Returns what became of the collectives of each trace: forward, then backward. Each has a ``timeline()``."""
        return tuple(self._collectives.placements)

    def transform_module(self, module: Any) -> None:
        """Thunder's hook: called with the module that ``thunder.jit`` returns."""
        if not self._unusable:
            dynamo_graphs.separate_graphs()
            self.lean.shorten(module)
            graph_names_of_process().note(module._model)
            if self.program_keeper:
                self.program_keeper.epoch.compiled += 1

    def transform_trace_post_optimization(self, trace: Any, **kwargs: Any) -> Any:
        """Thunder's hook: called with the forward trace, then with the backward trace."""
        if self._unusable:
            return self._leave_alone(trace, self._unusable)
        quicken_last()
        from fusioncache.thunder_adapter.api import TraceTag

        forward = self._handover.take(trace) if TraceTag.BACKWARD in trace.tags else None
        generation = forward.generation if forward else self._generations.begin(get_compile_data())
        if self._limits and not forward:
            self._ledger.count_bypass(self._limits, region=False)
        notes = begin_notes(trace, self._ledger.history, forward.noted if forward else None)
        start = time.perf_counter()
        trace, results = self.lean.spare_copies(trace)
        trace = forward.restore(trace) if forward else trace
        trace = self._collectives.average(trace)
        planned = PlannedStreams(trace)
        foresight = Foresight(forward.layouts if forward else None)
        try:
            planned = self._plan_streams(trace, notes, start)
            trace = self._share_regions(planned.trace, notes, start, foresight, generation)
        except Exception as error:
            self._report_failure("a trace", error)
            trace = planned.trace
        finally:
            notes.finish()
            self._ledger.add_canonicalize_seconds(time.perf_counter() - start)
            self.cache.save()
        if forward and forward.resharding:
            trace = gather_again(trace, forward.resharding)
        trace, resharding = self._collectives.place(trace, notes.record_placement)
        trace = self.lean.simplify(trace)
        if TraceTag.AUGMENTED_FORWARD in trace.tags:
            noted, layouts = notes.forward_trace, foresight.layouts
            state = ForwardState(noted, planned.recompute, layouts, generation, resharding, results)
            self._handover.put(trace, state)
        return trace

    def _leave_alone(self, trace: Any, reason: str) -> Any:
        """Returns the trace as it is. Nothing is asked of it, because nothing is known of it."""
        self._ledger.history.begin_trace()
        self._ledger.count_bypass(reason, region=False)
        self.cache.save()
        return trace

    def _plan_streams(self, trace: Any, notes: TraceNotes, start: float) -> PlannedStreams:
        compilers = Compilers(self._backends.arithmetic, self.report_left)
        planned = plan_streams(trace, self._options, compilers, self._report_failure)
        self._choices.extend(planned.choices)
        notes.record_choices(planned.choices)
        self._ledger.add_plan_seconds(time.perf_counter() - start)
        return planned

    def _share_regions(
        self, trace: Any, notes: TraceNotes, start: float, foresight: Foresight, generation: Generation | None
    ) -> Any:
        """Returns the trace with a call of its template for each region that can be shared."""
        notes.locate_regions(trace)
        fusions = {position: symbol for position, symbol in enumerate(trace.bound_symbols) if symbol.sym.is_fusion}
        if not fusions:
            self._explain_unfused(notes)
        # Torch's settings may change before the next trace. Layers give the same regions again, and what is equal as a
        # whole has the same canonical form.
        sharing = Sharing(
            remember(lambda executables: executables.backend.environment()), remember(canonicalize), generation
        )
        found = [self._find_template(position, fusion, sharing, notes) for position, fusion in fusions.items()]
        shared = [region for region in found if region is not None]
        wanted = arities_by_template(shared)
        calls = {region.position: self._call_of(region, wanted[region.call.template.key], notes) for region in shared}
        if self._helpers and not ahead.is_ahead():
            self._hand_over(self._helpers, trace, shared, foresight)
        trace = replace_symbols(trace, calls, start) if calls else trace
        notes.note_rewritten()
        return trace

    def _hand_over(self, helpers: Helpers, trace: Any, regions: Sequence[SharedRegion], foresight: Foresight) -> None:
        """Has what the calls of a trace will ask for compiled beside what this process does until then."""
        try:
            foresight.read(trace, {one.position: one for one in regions})
            wanted = {
                (id(one.call), one.binding.arities, layouts): one.call
                for one in regions
                if (layouts := foresight.layouts_of(one.fusion, one.binding)) is not None
            }
            asks = [ask for (_, arities, layouts), call in wanted.items() for ask in call.foresee(arities, layouts)]
            self._ledger.count_handed_over(helpers.hand_over(asks))
        except Exception as error:  # whatever it is, this process compiles for itself
            logger.info("nothing is compiled beside", exc_info=error)

    def _find_template(self, position: int, fusion: Any, sharing: Sharing, notes: TraceNotes) -> SharedRegion | None:
        """Returns the region at this position of a trace with its template; None if it stays as Thunder made it."""
        try:
            shared, hit = self._share_region(position, fusion, sharing)
        except Exception as error:
            if is_declined(error, Scope.REGION):
                self._ledger.count_bypass(error.reason)
                notes.note_bypass(position, fusion, error.reason)
                logger.info("%s bypassed: %s", fusion.sym.name, error.reason)
            else:
                self._report_failure(fusion.sym.name, error)
                notes.note_bypass(position, fusion, f"failed: {type(error).__name__}")
            return None
        template, arities = shared.call.template, shared.binding.arities
        self._ledger.count_region(template, arities, hit=hit)
        notes.note_template(position, fusion, template, arities, hit=hit)
        if self._misses and not hit:
            self._misses.add(template, shared.region, fusion, notes.compilation.lines)
        return shared

    def _share_region(self, position: int, fusion: Any, sharing: Sharing) -> tuple[SharedRegion, bool]:
        """Takes a region from its fused bound symbol to the call of its template; says whether that was known.

        Raises:
            Declined: if the region cannot be shared.
        """
        origin, region = origin_of(fusion), region_of(fusion)
        canonical = sharing.canonicalize(region)
        executables = self._backends.choose(fusion, origin)
        template, hit = self.cache.template(canonical.graph, sharing.environment(executables))
        instance = instance_of(region, canonical.binding, plain_region_of(fusion))
        call = self._calls.find(template, {canonical.binding.arities: instance}, executables, sharing.generation)
        return SharedRegion(position, fusion, origin, executables, region, canonical.binding, instance, call), hit

    def _call_of(self, shared: SharedRegion, wanted: set[Arities], notes: TraceNotes) -> list[Any]:
        """Returns the bound symbols that replace a region: the call of its template, verified if that was asked for."""
        arities, call = shared.binding.arities, shared.call
        arithmetic = self._backends.arithmetic(shared.fusion)
        plan = choose_plan(call.template.graph, arities, wanted, _PLANS.get(self._options.plan), arithmetic)
        fallback = fallback_of(shared)
        call.allow(arities, plan, fallback, shared.instance)
        notes.note_plan(shared.position, plan)
        target = self._verifier.verify(site_of(shared, fallback)) if self._verifier else call.target
        instance = shared.instance
        return call_of(shared.fusion, shared.binding, target, instance.plain or instance.region)

    def _explain_unfused(self, notes: TraceNotes) -> None:
        """Says why the trace has no region, unless there was nothing to fuse."""
        reason = why_unfused(notes.compilation)
        if reason:
            self._ledger.count_bypass(reason, region=False)
            warn_once(reason)

    def _count_first_call(self, template: Template) -> None:
        """Counts what a template compiled and what it loaded, at the end of its first call for a layout."""
        self.cache.append()
        if self._misses:
            self._misses.note_call(template)

    def report_left(self, reason: str) -> None:
        """Counts something of a trace or a model that stays as it is, such as a sum of a residual stream."""
        self._ledger.count_bypass(reason, region=False)
        logger.info("left alone: %s", reason)

    def _report_failure(self, what: str, error: Exception) -> None:
        logger.info("%s failed", what, exc_info=error)
        if self._ledger.count_bypass(f"failed: {type(error).__name__}"):
            warn(f"{what} stays as Thunder made it: {type(error).__name__}")
