"""The core transform: replaces the regions of a trace by calls of templates, and runs the accelerators' passes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fusioncache.backends.api import make_backend, problem
from fusioncache.cache.cache import Cache, default_cache
from fusioncache.cache.call import TemplateCall
from fusioncache.cache.generals import Sizes
from fusioncache.ir import Template
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.stats import Stats
from fusioncache.observe.trace_files import FIRST, TraceWriter
from fusioncache.process import forks
from fusioncache.process.warning import logger, warn, warn_once
from fusioncache.template.plan import Plan
from fusioncache.thunder_adapter.api import TraceTag, Transform, get_compile_data
from fusioncache.thunder_adapter.capabilities import explain_limits, explain_unusable
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.thunder_adapter.versions import read_digest
from fusioncache.transform import dynamo_graphs, grouped_products
from fusioncache.transform.generations import Generations
from fusioncache.transform.graph_names import graph_names_of_process
from fusioncache.transform.passes import Accelerator, Pass, TraceContext, order_passes, run_passes
from fusioncache.transform.provenance.misses import Misses
from fusioncache.transform.provenance.source import current_forward_trace
from fusioncache.transform.provenance.trace_notes import begin_notes
from fusioncache.transform.rewrite import note_seconds
from fusioncache.transform.shared_region import RegionBackends, name_backend
from fusioncache.transform.sharing import RegionSharing
from fusioncache.transform.templates import TemplateCalls
from fusioncache.verification.verifier import VerifiedTemplates, Verifier, VerifyMode

_PLANNING = ("saved sums", "residual streams")


class TemplateTransform(Transform):
    """Replaces the regions of traces by calls of templates. ``FusionCache`` is this transform with accelerators.

    Args:
        cache: has the templates; None for the default cache of the process.
        backend: the name of the backend that compiles, or ``"auto"``.
        plan: for long sums; None for the cheapest.
        sizes: which regions that differ only in sizes share a compilation.
        verify: when templates are compared with regions; None for never. In an untested Thunder they always are.
        explains: whether new templates are explained.

    Attributes:
        cache: the cache.
        backend: as given.
        ledger: counts for this transform.
        plan: the argument.
        misses: explain new templates; None if nothing is explained.
        verifier: compares the results of templates with those of regions; None if nothing is compared.
        backends: choose the backend of a region.
        template_calls: the calls of templates in its traces.
        generations: number the programs of each function.
        compiler: the backend of most regions; empty if nothing can be shared in this Thunder.
        accelerators: the accelerators in use.

    Raises:
        TypeError: if ``cache`` is not a cache.
        ValueError: if the backend is unknown or does not work here.
    """

    def __init__(
        self,
        *,
        cache: Cache | None = None,
        backend: str = "auto",
        plan: Plan | None = None,
        sizes: Sizes = Sizes.STATIC,
        verify: VerifyMode | None = None,
        explains: bool = False,
    ):
        super().__init__()
        self._limits, self._unusable = explain_limits(), explain_unusable()
        verify = verify or VerifyMode.TEMPLATE if self._limits else verify
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"cache must be a fusioncache.Cache, got {type(cache).__name__}")
        self.cache = default_cache() if cache is None else cache
        if reason := self._unusable or self._limits:
            warn_once(reason)
        if backend != "auto" and not self._unusable:
            make_backend(backend)
        self.backend, self.plan = backend, plan
        self.compiler = "" if self._unusable else name_backend(backend)
        if self.compiler == "eager" and backend == "auto":
            warn_once(f"regions run operation by operation, as {problem('inductor', 'cpu')}")
        install_more("grouped products", grouped_products.replacements)
        install_more("rematerialization")
        dynamo_graphs.separate_graphs()
        dynamo_graphs.keep_dynamo_out()
        if self.compiler:
            install_more("vector probes")
        self.ledger = Ledger(self.cache.ledger)
        self.misses = Misses(self.cache) if explains else None
        if self.misses:
            self.ledger.observers.append(self.misses.note_compile)
        self.backends = RegionBackends(backend, self.cache, self.ledger, sizes)
        self.generations = Generations()
        self.template_calls = TemplateCalls(self._note_first_call)
        self._pending_contexts = PendingContexts()
        verified = VerifiedTemplates(self.cache.store, read_digest())
        self.verifier = Verifier(verify, self.ledger, self.cache.write_record_later, verified) if verify else None
        self.accelerators: tuple[Accelerator, ...] = ()
        self._passes: tuple[Pass, ...] = ()
        self.use(())

    def use(self, accelerators: Sequence[Accelerator]) -> None:
        """Sets the accelerators of this transform. Must be called before Thunder gets the transform."""
        self.accelerators = tuple(accelerators)
        own = Pass("templates", lambda trace, context: RegionSharing(self, context).change(trace))
        self._passes = order_passes([own, *(each for one in self.accelerators for each in one.passes())])

    def passes(self) -> tuple[Pass, ...]:
        """Returns the passes that change each trace, in order."""
        return self._passes

    def stats(self) -> Stats:
        """Returns the counts of this transform so far."""
        return self.ledger.stats()

    def cache_key(self) -> str:
        """Returns the options of this transform that change its programs.

        All other ingredients of regions are in the templates' keys, which a stored program lists. Verify mode is not
        included, because its additions to a trace are not stored.
        """
        options = [ingredients for each in self.accelerators if (ingredients := each.ingredients())]
        return " ".join([f"backend={self.backend} ({self.compiler}) plan={self.plan}", *options])

    def calls(self) -> tuple[TemplateCall, ...]:
        """Returns the calls of templates in the traces so far: one for each way in which regions write a template."""
        return self.template_calls.all()

    def transform_module(self, module: Any) -> None:
        """Starts the accelerators for the module that ``thunder.jit`` returns. Thunder calls this hook with it."""
        if not self._unusable:
            dynamo_graphs.separate_graphs()
            graph_names_of_process().note(module._model)
            for each in self.accelerators:
                each.start(module)

    def transform_trace_post_optimization(self, trace: Any, **kwargs: Any) -> Any:
        """Returns the transformed trace. Thunder calls this hook with the forward trace, then with the backward one."""
        if self._unusable:
            return self._leave_alone(trace, self._unusable)
        is_backward = TraceTag.BACKWARD in trace.tags
        forward = self._pending_contexts.take(trace) if is_backward else None
        generation = forward.generation if forward else self.generations.begin(get_compile_data())
        if self._limits and not forward:
            self.ledger.count_bypass(self._limits, region=False)
        notes = begin_notes(trace, self.ledger.history, forward.notes if forward else None)
        context = TraceContext(is_backward, notes, generation, forward.for_backward if forward else {})
        start = time.perf_counter()
        files = TraceWriter(f"{notes.number:03}.{1 + is_backward} {notes.direction} {notes.compilation.model or ''}")
        files.write_trace(FIRST, trace)

        def watch(name: str, before: Any, after: Any, seconds: float) -> None:
            if after is not before:
                note_seconds(after, seconds)
            files.write_trace(name, after)
            if name in _PLANNING:
                self.ledger.history.add_seconds("planning", seconds)

        try:
            trace = run_passes(self._passes, trace, context, self, watch)
        finally:
            notes.finish()
            self.ledger.count("canonicalize_seconds", time.perf_counter() - start)
            self.cache.write_record()
        if TraceTag.AUGMENTED_FORWARD in trace.tags:
            self._pending_contexts.put(trace, context)
        return trace

    def _leave_alone(self, trace: Any, reason: str) -> Any:
        """Returns the trace unchanged and unread, because its Thunder is not supported."""
        self.ledger.history.begin_trace()
        self.ledger.count_bypass(reason, region=False)
        self.cache.write_record()
        return trace

    def _note_first_call(self, template: Template) -> None:
        """Saves the record after a first call for a layout, and explains a miss."""
        self.cache.write_record_later()
        if self.misses:
            self.misses.note_call(template)

    def count_taken_out(self, taken: Mapping[str, int]) -> None:
        """Counts the operations that were removed from a final trace, by kind."""
        for what, number in taken.items():
            self.ledger.count("taken_out", number, of=what)

    def report_unchanged(self, reason: str) -> None:
        """Counts a part of a trace or a model that is left unchanged, such as a sum of a residual stream."""
        self.ledger.count_bypass(reason, region=False)
        logger.info("left alone: %s", reason)

    def report_failure(self, what: str, error: Exception) -> None:
        """Counts a failure, and warns once for each error type. The part that failed stays as Thunder made it."""
        logger.info("%s failed", what, exc_info=error)
        if self.ledger.count_bypass(f"failed: {type(error).__name__}"):
            warn(f"{what} stays as Thunder made it: {type(error).__name__}")


class PendingContexts:
    """The contexts of forward traces whose backward traces have not come yet.

    Thunder 0.2.6 calls a transform with the forward trace and later with the backward trace, and no argument connects
    the two calls. But both traces share one object: ``trace.names``, the set of the names in use, which each derived
    trace inherits. So a backward trace is recognized by it, despite compilations in between on any thread. A foreign
    transform may have given its traces other sets. Then the forward trace is the last of the current compilation.

    A context lives as long as Thunder holds the forward trace. So nothing is left over if the backward trace never
    comes, because the function has no gradients or a failure came in between.
    """

    def __init__(self) -> None:
        self._contexts: WeakKeyDictionary[Any, TraceContext] = WeakKeyDictionary()
        self._lock = forks.lock()

    def put(self, forward_trace: Any, context: TraceContext) -> None:
        """Stores the context of a forward trace, as Thunder will receive it, for its backward trace."""
        with self._lock:
            self._contexts[forward_trace] = context

    def take(self, backward_trace: Any) -> TraceContext | None:
        """Removes and returns the context of the forward trace of a backward trace; None if not known."""
        with self._lock:
            for forward_trace in list(self._contexts):
                if forward_trace.names is backward_trace.names:
                    return self._contexts.pop(forward_trace)
            last = current_forward_trace()
            return self._contexts.pop(last, None) if last is not None else None
