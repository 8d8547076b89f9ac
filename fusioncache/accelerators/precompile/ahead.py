"""Compiles regions before their calls: in other processes while this one traces, or together at the first call.

TorchInductor's C++ compiler takes as long for all kernels of a model as for two of them alone, and each worker would
pay for that. So without workers the first call compiles for all calls: see ``Backend.compiled_together``.

Regions are compiled for the layouts that their values will have, as far as the trace implies them. A wrong guess costs
an unused compilation, so unknown layouts are not guessed. Inputs count as contiguous. A region's results have the
layouts that ``cache/results.py`` gives them, or else those that nvFuser writes: without gaps.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from operator import attrgetter
from typing import Any

from fusioncache.accelerators.precompile.entry_compiler import (
    NO_WORKER,
    CompileTask,
    EntryCompiler,
    TaskOutcome,
    gpu_in_use,
)
from fusioncache.accelerators.precompile.pool import CompilePool, choose_jobs, find_pool
from fusioncache.accelerators.precompile.workers import OPENING, has_room
from fusioncache.accelerators.splitting.operations import CONTIGUOUS_OPERATIONS, PICK
from fusioncache.backends.api import Backend, backend_class
from fusioncache.backends.bound_symbols import outputs_of, torch_dtype
from fusioncache.cache.cache import Cache
from fusioncache.cache.peers import Helpers, StoreRequest, Wait, find_job_store
from fusioncache.cache.results import expect_layouts, make_meta
from fusioncache.ir import Binding, Graph, Key, TensorType, operands
from fusioncache.ir.ops import RESHAPE, op_traits
from fusioncache.ir.template import ArgumentLayouts
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process import forks
from fusioncache.process.collector import without_collector
from fusioncache.process.warning import log_errors, progress_line
from fusioncache.store import Store
from fusioncache.store.locks import TOO_LONG
from fusioncache.template.strides import Strided, row_major, strided_of, strides_of
from fusioncache.transform.passes import Accelerator, TraceContext
from fusioncache.transform.shared_region import SharedRegion
from fusioncache.transform.transform import TemplateTransform

_IMPLEMENTATIONS = ("torch_slice_prim_impl", "torch_prims_reshape_impl", PICK)
"""Operations of Thunder's executor for torch that are implemented by functions of torch."""
_CONTIGUOUS = frozenset(
    {"linear", "matmul", "_grouped_mm", "embedding", "embedding_backward", "arange", *CONTIGUOUS_OPERATIONS}
)
"""Torch operations with contiguous results for any operands. Grouped products: if rows have a multiple of 16 bytes, as
nearly all do."""
_GRADIENTS: Mapping[str, int] = {"grouped_mm_left_gradient": 1, "grouped_mm_right_gradient": 2}
"""Operations whose result has the layout of an operand, with the position of that operand."""
_FLASH_BACKWARD = "sdpafx_scaled_dot_product_efficient_attention_backward"
"""Thunder's name for the backward pass of flash attention."""
_FLASH_MULTIPLE = 8
"""Flash attention pads heads whose size is no multiple of this."""

Layouts = dict[str, Strided | None]
"""The layout of each value that is not contiguous, by name; None if it is unknown."""


class LayoutPrediction:
    """Predicts the layouts of a trace's values.

    Args:
        before: the layouts of the forward trace's values.
    """

    def __init__(self, before: Mapping[str, Strided | None] | None = None):
        self.layouts: Layouts = dict(before or {})

    def read_trace(self, trace: Any, regions: Mapping[int, SharedRegion]) -> None:
        """Predicts the layouts of a trace's values.

        Args:
            trace: the trace.
            regions: by the position of their fused call.
        """
        for position, symbol in enumerate(trace.bound_symbols):
            if symbol.sym.is_fusion:
                self._read_region(symbol, regions.get(position))
            else:
                self._read_call(symbol)

    def layouts_of(self, fusion: Any, binding: Binding) -> ArgumentLayouts | None:
        """Returns the layouts of the arguments of a region's template; None if one of them is unknown."""
        found = [self._layout_of(fusion.args[position]) for position in binding.arguments]
        known = tuple((value.shape, value.strides) for value in found if value is not None)
        return known if len(known) == len(found) else None

    def _layout_of(self, proxy: Any) -> Strided | None:
        shape = _shape_of(proxy)
        return None if shape is None else self.layouts.get(proxy.name, row_major(shape))

    def _note(self, proxy: Any, layout: Strided | None) -> None:
        """Records a layout unless it is contiguous, which is the default."""
        if layout is None or not layout.is_contiguous:
            self.layouts[proxy.name] = layout

    def _read_region(self, fusion: Any, region: SharedRegion | None) -> None:
        outputs = outputs_of(fusion)
        found: Sequence[Strided | None] = [None] * len(outputs)
        if region is not None:
            inputs = [self._layout_of(proxy) for proxy in fusion.args]
            if region.executables.backend.lays_out_as_torch:
                found = expect_layouts(region.instance.plain or region.instance.region, inputs)
            else:
                found = _follow_views(region.region, inputs)
        for proxy, layout in zip(outputs, found, strict=True):
            self._note(proxy, layout)

    def _read_call(self, symbol: Any) -> None:
        name, results = symbol.sym.name, symbol.flat_proxy_outs
        if not results or str(symbol.sym.id).startswith("PrimIDs.UNPACK") or name in _CONTIGUOUS:
            return
        try:
            found = self._evaluate_on_meta(symbol, name)
        except Exception:  # after any error the layouts are unknown
            found = []
        for index, proxy in enumerate(results):
            self._note(proxy, found[index] if len(found) == len(results) else None)

    def _evaluate_on_meta(self, symbol: Any, name: str) -> Sequence[Strided | None]:
        """Returns the layouts of an operation's results, from torch's meta functions; empty if they are unknown.

        Raises:
            Exception: if torch's function needs more than shapes, or a layout is unknown.
        """
        from torch.utils._pytree import tree_map

        if name == _FLASH_BACKWARD and symbol.args[1].shape[-1] % _FLASH_MULTIPLE == 0:
            return [_flash_gradient_layout(self._layout_of(proxy)) for proxy in symbol.args[1:4]]
        if name in _GRADIENTS:
            layout = self._layout_of(symbol.args[_GRADIENTS[name]])
            return [layout] if layout is not None and layout.is_contiguous else []
        function = _find_function(symbol, name)
        if function is None or not symbol.flat_proxy_args:  # without a tensor torch would allocate the result
            return []
        args, kwargs = tree_map(self._make_argument, (tuple(symbol.args), dict(symbol.kwargs)))
        results = function(*args, **kwargs)
        return [strided_of(result) for result in (results if isinstance(results, tuple) else (results,))]

    def _make_argument(self, value: Any) -> Any:
        """Returns a meta tensor for a tensor, and numbers and None as they are.

        Raises:
            ValueError: for other arguments, and for a tensor of unknown layout.
        """
        if value is None or isinstance(value, int | float):
            return value
        layout = self._layout_of(value)
        if layout is None:
            raise ValueError("an argument without a known layout")
        return make_meta(layout, torch_dtype(value.dtype.full_name))


def _find_function(symbol: Any, name: str) -> Callable[..., Any] | None:
    """Returns torch's function of an operation, which also computes layouts; None if it is not torch's."""
    import torch

    if name in _IMPLEMENTATIONS:
        function: Callable[..., Any] = symbol._call_ctx[name]
        return function
    module = symbol.sym.module
    known = module in (torch, torch.nn.functional, torch.Tensor)
    return attrgetter(name.removeprefix("torch."))(module) if known else None


def _flash_gradient_layout(heads: Strided | None) -> Strided | None:
    """Returns the layout of flash attention's gradient of such heads: heads are second to last in memory."""
    import torch

    if heads is None:
        return None
    return strided_of(torch.empty_like(make_meta(heads).transpose(1, 2)).transpose(1, 2))


def _shape_of(proxy: Any) -> tuple[int, ...] | None:
    """Returns the shape of a tensor; None for other values and for symbolic sizes."""
    shape = getattr(proxy, "_shape", None)
    return tuple(shape) if shape is not None and all(type(size) is int for size in shape) else None


def _follow_views(region: Graph, inputs: Sequence[Strided | None]) -> list[Strided | None]:
    """Returns the layouts of a region's results: views of inputs follow these, other results are contiguous."""
    values: list[Strided | None] = [*inputs, *[None] * region.sizes]
    computed = [False] * len(values)
    for op, _ in region.results():
        sources = [index for _, index in operands(op)]
        view = op_traits(op.name).shape_only and len(sources) == 1 and not computed[sources[0]]
        for type_ in op.outputs:
            values.append(_follow(op, values[sources[0]] if view else None, type_, view=view))
            computed.append(not view)
    return [values[index] for index in region.outputs]


def _follow(op: Any, source: Strided | None, type_: Any, *, view: bool) -> Strided | None:
    if not isinstance(type_, TensorType):
        return None
    shape = tuple(size for size in type_.shape if isinstance(size, int))
    if len(shape) < len(type_.shape):
        return None
    if not view:
        return row_major(shape)
    if source is None:
        return None
    # A reshape is a view if it can be one, which torch decides.
    return strided_of(make_meta(source).reshape(shape)) if op.name == RESHAPE else strides_of(op, [source], shape)


MOST_EXPECTED = 64
"""The maximum number of loaded programs whose possible requests are stored."""
MOST_REQUESTS = 512
"""The maximum number of regions that are compiled together."""
WAIT_SECONDS = 320.0
"""Seconds without a finished task after which the pool is given up: longer than workers may hang."""
LOOK_SECONDS = 0.05
"""Seconds to wait for a worker before the next check whether another process compiles the same."""


class RequestHelpers(Helpers):
    """Base of ``Helpers`` that compile into a store.

    Args:
        store: the store.
    """

    def __init__(self, store: Store):
        self._store = store
        self._expected: deque[tuple[Callable[[], Sequence[StoreRequest]], Callable[[int], object]]] = deque(
            maxlen=MOST_EXPECTED
        )
        self._lock = forks.lock()
        # The memory stays in torch's allocator, because this process needs it soon.
        self._compiler = EntryCompiler(store, patience=0.0, releases=False)

    def get_ready(self) -> None:
        """See ``Helpers``. Does nothing here."""

    def hand_over_later(self, requests: Sequence[StoreRequest], on_done: Callable[[], object]) -> int:
        """See ``Helpers``. Compiles none here."""
        return 0

    def expect(self, requests: Callable[[], Sequence[StoreRequest]], handed_over: Callable[[int], object]) -> None:
        """See ``Helpers``."""
        with self._lock:
            self._expected.append((requests, handed_over))

    def note_missing(self) -> bool:
        """See ``Helpers``."""
        with self._lock:
            expected = [*self._expected]
            self._expected.clear()
        with log_errors("nothing that was expected is compiled ahead"):  # this process compiles alone then
            for requests, handed_over in expected:
                handed_over(self.hand_over(requests()))
        return bool(expected)

    def _is_stored(self, wanted: StoreRequest) -> bool:
        return self._store.entry(wanted.key.digest, wanted.request.backend) is not None


def _make_task(wanted: StoreRequest, device: int | None) -> CompileTask:
    return CompileTask(wanted.request, wanted.instance, wanted.key.digest, device, wanted.as_general)


class PoolHelpers(RequestHelpers):
    """Compiles in a process pool. The store's turn decides which process compiles what: see ``Store.take_turn``.

    Args:
        store: receives the executables.
        pool: the process pool.
    """

    def __init__(self, store: Store, pool: CompilePool):
        super().__init__(store)
        self._pool = pool
        self._tasks: dict[Key, tuple[StoreRequest, Future[TaskOutcome]]] = {}
        self._tried: dict[Key, float] = {}
        self._later: deque[tuple[StoreRequest, Callable[[], object]]] = deque()
        self._fed = 0
        forks.register(self)

    def hand_over(self, requests: Sequence[StoreRequest]) -> int:
        """See ``Helpers``."""
        device = gpu_in_use()
        with self._lock:
            new = {wanted.key: wanted for wanted in requests if wanted.key not in self._tasks}
            missing = [wanted for wanted in new.values() if not self._is_stored(wanted)]
            if not missing or not self._pool.start():
                return 0
            futures = self._pool.submit([_make_task(wanted, device) for wanted in missing])
            self._tasks |= {wanted.key: (wanted, future) for wanted, future in zip(missing, futures, strict=True)}
        for future in futures:
            future.add_done_callback(lambda _: self._submit_deferred())
        return len(missing)

    def hand_over_later(self, requests: Sequence[StoreRequest], on_done: Callable[[], object]) -> int:
        """See ``Helpers``."""
        with self._lock:
            known = {*self._tasks, *(wanted.key for wanted, _ in self._later)}
            new = {wanted.key: wanted for wanted in requests if wanted.key not in known}
            missing = [wanted for wanted in new.values() if not self._is_stored(wanted)]
            self._later.extend((wanted, on_done) for wanted in missing)
        self._submit_deferred()
        return len(missing)

    def _submit_deferred(self) -> None:
        """Submits tasks of low priority, at most one for each worker, unless tasks of calls are running."""
        with self._lock:
            if any(not future.done() for _, future in self._tasks.values()):
                return  # the last of these calls this again
            while self._later and self._fed < self._pool.jobs:
                wanted, on_done = self._later.popleft()
                self._fed += 1
                (future,) = self._pool.submit([_make_task(wanted, gpu_in_use())])
                future.add_done_callback(partial(self._note_fed, on_done))

    def _note_fed(self, on_done: Callable[[], object], future: Future[TaskOutcome]) -> None:
        with self._lock:
            self._fed -= 1
            if future.result() == NO_WORKER:
                self._later.clear()
        on_done()
        self._submit_deferred()

    def get_ready(self) -> None:
        """See ``Helpers``. Two workers open the GPU if memory is no concern, because there may be no task."""
        device = gpu_in_use()
        if self._pool.start() and device is not None and has_room():
            self._pool.open_early(device, OPENING)

    def wait_for(self, key: Key) -> Wait:
        """See ``Helpers``."""
        with self._lock:
            found, here = self._tasks.pop(key, None), self._tried.pop(key, 0.0)
        with log_errors("other processes are of no use"):  # this process can compile
            return Wait(seconds_here=here) if here or found is None else self._wait_for(*found)
        return Wait()

    def after_fork(self) -> None:
        """Drops the tasks in a forked child: their outcomes arrive in the parent."""
        self._tasks, self._tried, self._fed = {}, {}, 0
        self._later.clear()

    def _wait_for(self, wanted: StoreRequest, future: Future[TaskOutcome]) -> Wait:
        """Waits while another process compiles this, and compiles other tasks meanwhile."""
        begun, starting, others = time.perf_counter(), self._compiler.starting, 0.0
        # Code for one size is derived by the worker that holds code for any. This process would have to compile that.
        while not future.done() and (wanted.as_general or self._is_taken(wanted)):
            seconds = self._compile_another()
            others += seconds
            if time.perf_counter() - max(begun, self._pool.answered) - others > WAIT_SECONDS:
                self._pool.end()
                break
            if not seconds:
                wait([future], LOOK_SECONDS)
        if not future.done() and self._is_stored(wanted):
            wait([future], LOOK_SECONDS)  # the outcome may be about to arrive
        started = self._compiler.starting - starting
        if not future.done() or future.result().result == "refused":
            return Wait(seconds_on_others=others, start_seconds=started)
        started += start_within(time.perf_counter() - begun - others - started, future.result())
        return Wait(by_helper=True, seconds_on_others=others, start_seconds=started)

    def _is_taken(self, wanted: StoreRequest) -> bool:
        """True if another process or thread is compiling this."""
        with self._store.take_turn(wanted.key, wanted.request.backend, 0.0) as turn:
            return turn.lock_problem == TOO_LONG

    def _compile_another(self) -> float:
        """Compiles a task that no process has begun; returns its seconds without a compiler's start, 0 for none."""
        with self._lock:
            undone = [(key, wanted) for key, (wanted, future) in self._tasks.items() if not future.done()]
            spare = [(key, wanted) for key, wanted in undone if not wanted.as_general]
            untried = next((pair for pair in spare if pair[0] not in self._tried), None)
            if untried is None:
                return 0.0
            key, wanted = untried
            self._tried[key] = 0.0
        begun, starting = time.perf_counter(), self._compiler.starting
        outcome = self._compiler.compile(_make_task(wanted, gpu_in_use()))
        seconds = time.perf_counter() - begun - (self._compiler.starting - starting)
        with self._lock:
            if outcome.result == "compiled" and key in self._tried:
                self._tried[key] = seconds
        return seconds


def start_within(waited: float, outcome: TaskOutcome) -> float:
    """Returns the seconds of a wait in which the worker started its compiler, before it compiled."""
    return min(max(waited - (outcome.seconds - outcome.on_start), 0.0), outcome.on_start)


class BatchCompiler(RequestHelpers):
    """Compiles in this process, all regions together at the first call that lacks its executable.

    In a job of several ranks nothing is compiled together, because one rank compiles each template for all.

    Args:
        store: receives the executables.
        backend: the name of the backend whose regions are compiled together.
    """

    def __init__(self, store: Store, backend: str):
        super().__init__(store)
        self._backend_name = backend
        self._requests: dict[Key, StoreRequest] = {}
        self._made: dict[Key, float] = {}

    def hand_over(self, requests: Sequence[StoreRequest]) -> int:
        """See ``Helpers``. Returns 0, because none is compiled beside this process."""
        with self._lock:
            for wanted in requests:
                if wanted.request.backend == self._backend_name and len(self._requests) < MOST_REQUESTS:
                    self._requests.setdefault(wanted.key, wanted)
        return 0

    def wait_for(self, key: Key) -> Wait:
        """Compiles all requests that were handed over, if this is one and is not stored. See ``Helpers``."""
        with self._lock:
            wanted = self._requests.pop(key, None)
            if wanted is not None:
                others = [] if self._is_stored(wanted) or find_job_store() is not None else [*self._requests.values()]
                if others:
                    return self._compile([wanted, *others])
            seconds = self._made.pop(key, None)
        return Wait() if seconds is None else Wait(seconds_here=seconds)

    def _compile(self, requests: Sequence[StoreRequest]) -> Wait:
        """Compiles these requests together. The call of the first one waits."""
        self._requests.clear()
        first, line, start, before = requests[0], progress_line(), time.perf_counter(), self._compiler.starting
        with self._store.take_turn_together(first.key, self._backend_name):
            requests = [wanted for wanted in requests if not self._is_stored(wanted)]

            def progress(left: int) -> None:
                line.say(f"compiling {len(requests)} regions with TorchInductor, {left} left")
                gc.collect(0)  # frees the compiler's cycles before they move to an older generation

            with line.show(lambda: f"compiling {len(requests)} regions"), without_collector():
                outcomes = self._compiler.compile_together([_make_task(wanted, None) for wanted in requests], progress)
        starting = self._compiler.starting - before
        seconds = time.perf_counter() - start - starting
        pairs = zip(requests, outcomes, strict=True)
        compiled = [wanted.key for wanted, outcome in pairs if outcome.result == "compiled"]
        if not compiled:
            return Wait(start_seconds=starting)
        # One compiler run serves all, so its time cannot be attributed to single regions.
        self._made |= dict.fromkeys(compiled, seconds / len(compiled))
        return Wait(seconds_here=self._made.pop(first.key, 0.0), seconds_on_others=seconds, start_seconds=starting)


def find_helpers(cache: Cache, jobs: int, backend: str, *, waits: bool = False) -> Helpers | None:
    """Returns the cache's helpers that compile in other processes; None if there are none.

    Args:
        cache: the cache. Executables go through its store.
        jobs: the maximum number of processes. The first caller for a store decides.
        backend: the backend of most tasks.
        waits: whether the pool starts at the first task only, if the store has programs of one length for each model.
            A process that loads its programs needs no workers, and would share its cores with them.
    """
    store = cache.store if jobs else None
    # Only the class is used, because an instance might open a device.
    if not store or backend_class(backend).persist is Backend.persist:
        return None
    if cache.helpers is None:
        pool = find_pool(store, jobs, backend, waits=waits)
        cache.helpers = PoolHelpers(store, pool) if pool else None
    return cache.helpers


def find_batch_compiler(cache: Cache, backend: str) -> Helpers | None:
    """Returns the cache's ``BatchCompiler``; None without a store, or if the backend compiles regions one by one."""
    store = cache.store if backend_class(backend).compiled_together is not Backend.compiled_together else None
    if store is None or store.directory is None:
        return None
    if cache.batch is None:
        cache.batch = BatchCompiler(store, backend)
    return cache.batch


class Precompilation(Accelerator):
    """Hands the regions of each trace over to helpers.

    Args:
        helpers: compile beside this process, or all regions of a program together.
        ledger: counts the regions that are handed over.

    Attributes:
        helpers: the argument.
    """

    name = "precompile"

    def __init__(self, helpers: Helpers, ledger: Ledger):
        self.helpers = helpers
        self._ledger = ledger

    def foresee(self, trace: Any, regions: Sequence[SharedRegion], context: TraceContext) -> None:
        """Hands the templates that the calls of a trace will need over to the helpers. Never raises."""
        prediction = LayoutPrediction(context.from_forward.get(self.name))
        context.for_backward[self.name] = prediction.layouts
        with log_errors("nothing is compiled beside"):  # this process compiles alone then
            prediction.read_trace(trace, {one.position: one for one in regions})
            new = {
                (id(one.call), one.binding.arities, layouts): one.call
                for one in regions
                if (layouts := prediction.layouts_of(one.fusion, one.binding)) is not None
            }
            requests = [each for (_, arities, layouts), call in new.items() for each in call.foresee(arities, layouts)]
            self._ledger.count("handed_over", self.helpers.hand_over(requests))


def find_precompilation(
    transform: TemplateTransform, jobs: int | None, *, compares: bool, waits: bool = False
) -> Precompilation | None:
    """Returns the accelerator that compiles beside or before calls of a transform; None if each compiles alone.

    Args:
        transform: the transform.
        jobs: the number of processes that compile; None for as many as pay.
        compares: whether results are verified; then no process pays.
        waits: see ``find_helpers``.
    """
    cache, compiler = transform.cache, transform.compiler
    processes = choose_jobs(jobs, "" if compares else compiler)
    helpers = find_helpers(cache, processes, compiler, waits=waits) or find_batch_compiler(cache, compiler)
    return None if helpers is None else Precompilation(helpers, transform.ledger)
