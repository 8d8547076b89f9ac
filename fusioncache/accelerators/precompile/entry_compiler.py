"""Compiles requests of entries and calls with generated arguments, unless the result is stored."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

from fusioncache.backends.api import Progress, device_types_of, make_backend, process_starts
from fusioncache.backends.torch_settings import apply_torch_settings
from fusioncache.cache.executable import REGION, REQUEST, Builder, unstored
from fusioncache.cache.peers import Ranks
from fusioncache.cache.relatives import RELATIVES, decode_relatives
from fusioncache.ir import Declined, GeneralInstance, Graph, Instance, NumberType, Scope, TensorType, is_declined
from fusioncache.ir.graph import pick
from fusioncache.ir.keys import GENERAL_LAYOUT, ORDER, read_key
from fusioncache.ir.ops import op_traits
from fusioncache.ir.template import ArgumentLayouts, Request, count_elements, decode_region, decode_request
from fusioncache.process.warning import log_errors, logger
from fusioncache.store import Entry, Store
from fusioncache.store.entry import REFUSED, is_compiled
from fusioncache.store.signing import require_trust
from fusioncache.store.store import COMPILE_SECONDS
from fusioncache.template.generalization import make_family
from fusioncache.template.key import call_ingredients
from fusioncache.template.strides import find_sizes
from fusioncache.template.text import write_graph

_LEAST, _MOST = 0.5, 1.0
"""Range of random floats, in which logarithm, root, quotient and exponential are all finite."""


def gpu_in_use() -> int | None:
    """Returns the number of the current GPU; None if this process has not used one. Opens none."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else None


def make_arguments(graph: Graph, layouts: ArgumentLayouts) -> list[Any]:
    """Returns generated arguments of a graph with these layouts, on the current device of their type.

    Floats are random between 0.5 and 1, the same each time. Integers are 1, or 0 if an operation of the graph indexes.
    Numbers are 1, except for sizes.

    Raises:
        Exception: if torch cannot make them, for example for lack of memory.
    """
    sizes = find_sizes(graph, layouts)
    integer = int(not any(op_traits(op.name).indexes for op in graph.ops))
    return [
        _make_number(type_, sizes.get(number, 1))
        if isinstance(type_, NumberType)
        else _make_tensor(type_, layout, integer, number)
        for number, (type_, layout) in enumerate(zip(graph.inputs, layouts, strict=True))
    ]


def release_memory() -> None:
    """Returns the unused memory of torch's caching allocator to the device, for other processes."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _make_number(type_: NumberType, value: int) -> Any:
    return {"int": int, "float": float, "bool": bool, "complex": complex}[type_.python_type](value)


def _make_tensor(type_: TensorType, layout: tuple[Sequence[int], Sequence[int]] | None, integer: int, seed: int) -> Any:
    import torch

    from fusioncache.backends.bound_symbols import torch_dtype

    assert layout is not None
    shape, strides = layout
    count = count_elements(shape, strides)  # strides may leave gaps or be 0
    flat = _make_values(count, torch_dtype(type_.dtype), torch.device(type_.device), integer, seed)
    return flat.as_strided(tuple(shape), tuple(strides))


def _make_values(count: int, dtype: Any, device: Any, integer: int, seed: int) -> Any:
    import torch

    if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        return torch.full((count,), integer, dtype=dtype, device=device)
    # A separate generator, so that the program's random numbers stay the same.
    generator = torch.Generator(device).manual_seed(seed)
    random = torch.rand(count, generator=generator, device=device) * (_MOST - _LEAST) + _LEAST
    return random > (_LEAST + _MOST) / 2 if dtype is torch.bool else random.to(dtype)


DAMAGED = "damaged"
UNTRUSTED = "from another machine, and not signed by a key that is trusted now"
GENERAL = "compiled for any sizes, when another one than the first is asked for"
OLDER = "stored without its compile request, by an older version"


@dataclass(frozen=True, slots=True)
class CompileTask:
    """A request to compile a region into the store.

    Attributes:
        request: the request.
        instance: the requesting region, which is compiled and determines the bits.
        digest: of the key that the result must have; empty for any.
        device: the number of the GPU to compile on; None for any.
        as_general: the region as an instance of a general one, if its code is derived from that one's; else None.
    """

    request: Request
    instance: Instance
    digest: str = ""
    device: int | None = None
    as_general: GeneralInstance | None = None


def survey(store: Store) -> tuple[int, list[CompileTask], Counter[str]]:
    """Reads the entries of a store that backends compiled: not programs, which only tracing makes.

    Returns:
        The number of entries; a task for each distinct request, the longest compiles first; and the numbers of entries
        that cannot be compiled again, by reason. Entries of one template for several versions share a request.
    """
    entries = [entry for entry in store.entries() if is_compiled(entry.backend)]
    found: dict[tuple[str | None, ...], Entry] = {}
    trust = require_trust()
    refused: Counter[str] = Counter()
    for entry in entries:
        objects = {part.name: part.object for part in entry.artifacts}
        if entry.origin is not None and not trust.accepts(entry.origin):
            refused[UNTRUSTED] += 1
        elif REQUEST in objects:
            # If results depend on the order of operands, a request has an entry for each region that made it.
            region = objects.get(REGION) if ORDER in dict(entry.ingredients) else None
            found.setdefault((objects[REQUEST], region, objects.get(RELATIVES)), entry)  # the newest
        else:
            refused[GENERAL if GENERAL_LAYOUT in dict(entry.ingredients) else OLDER] += 1
    tasks: list[CompileTask] = []
    for entry in sorted(found.values(), key=lambda entry: -entry.seconds):
        try:
            tasks.append(read_request(store, entry))
        except Declined as declined:
            declined.require(Scope.REQUEST)
            refused[declined.reason] += 1
    return len(entries), tasks, refused


def read_request(store: Store, entry: Entry) -> CompileTask:
    """Returns the task to compile an entry again.

    Raises:
        Declined: if the entry is gone or damaged.
    """
    try:
        if store.disk is None:
            raise ValueError("no directory")
        names = REQUEST, REGION, RELATIVES
        contents = {part.name: store.disk.content(part) for part in entry.artifacts if part.name in names}
        request, instance = decode_request(contents[REQUEST]), decode_region(contents[REGION])
        if not _belongs(request, instance, entry):
            raise ValueError("the request of another entry")
        if RELATIVES not in contents:
            return CompileTask(request, instance)
        relatives = decode_relatives(contents[RELATIVES])
        as_general = make_family(relatives.regions).find_instance(instance.region)
        if as_general is None:
            raise ValueError("a region that is not like its relatives")
        return CompileTask(request, relatives.find_own(instance.region), as_general=as_general)
    except Exception as error:  # after any error the entry counts as damaged
        raise Declined(DAMAGED, Scope.REQUEST) from error


def _belongs(request: Request, instance: Instance, entry: Entry) -> bool:
    """True if the entry's key was made for this request, and the region has the graph's arguments and results."""
    graph = request.graph
    texts = read_key(entry.text)
    expected = {**write_graph(graph), **call_ingredients(graph, request.layouts, instance)}
    named = all(texts.get(name) == text for name, text in expected.items())
    counts = len(instance.inputs) == len(graph.inputs) and len(instance.outputs) == len(graph.outputs)
    return named and counts and request.backend == entry.backend


FAILED, NOT_STORED = "failed", "not stored"
DIED = "worker died"
ELSEWHERE, OTHER_KEY = "another process compiles it", "other settings here"

Result = Literal["compiled", "ready", "refused"]


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of a task.

    Attributes:
        result: whether the region was compiled, stored before, or refused.
        reason: of the refusal.
        temporary: whether the refusal is temporary: a later try may succeed.
        seconds: that the task took in another process.
        on_start: the part of ``seconds`` in which a compiler started.
    """

    result: Result
    reason: str = ""
    temporary: bool = False
    seconds: float = 0.0
    on_start: float = 0.0


NO_WORKER = TaskOutcome("refused", "no worker starts", temporary=True)


@dataclass(slots=True, eq=False)
class EntryCompiler:
    """Compiles requests of a store's entries, and of calls in other processes.

    Args:
        store: receives the executables.
        dry_run: whether to compile nothing, and only report what would be compiled.
        patience: how many seconds to wait for another process that compiles the same. With 0 the task is refused.
        releases: whether to return torch's unused memory to the device after each task.

    Attributes:
        starting: seconds in which compilers started here, in all tasks so far.
    """

    _store: Store
    _: KW_ONLY
    dry_run: bool = False
    patience: float = COMPILE_SECONDS
    releases: bool = True
    starting: float = field(default=0.0, init=False)
    _builders: dict[tuple[str, str, str], tuple[Builder, list[str]]] = field(default_factory=dict, init=False)

    def compile(self, task: CompileTask) -> TaskOutcome:
        """Compiles a task, if it is for this device and these versions. Never raises: errors are outcomes."""
        try:
            import torch

            missing = device_types_of(task.request.graph) - ({"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"})
            if missing:
                return TaskOutcome("refused", f"other device type: {', '.join(sorted(missing))}")
            gpu = nullcontext() if task.device is None else torch.cuda.device(task.device)
            with gpu, apply_torch_settings(task.request.settings):
                return self._build(task)
        except Exception as error:  # after any error other tasks can be compiled
            if is_declined(error, Scope.REQUEST):
                return TaskOutcome("refused", error.reason)
            logger.info("a task fails", exc_info=error)
            return TaskOutcome("refused", f"{FAILED}: {type(error).__name__}")
        finally:
            if self.releases:
                release_memory()

    def compile_together(self, tasks: Sequence[CompileTask], progress: Progress) -> list[TaskOutcome]:
        """Compiles several tasks, together if that is faster. Never raises."""
        with ExitStack() as stack:
            with log_errors("regions are not compiled together"):  # each is compiled alone
                self._enter_together(stack, tasks, progress)
            return [self.compile(task) for task in tasks]

    def _enter_together(self, stack: ExitStack, tasks: Sequence[CompileTask], progress: Progress) -> None:
        """Enters the contexts in which backends compile the missing executables together."""
        missing: dict[Builder, list[tuple[Graph, Sequence[Any]]]] = {}
        for task in tasks:
            request, instance = task.request, task.instance
            with apply_torch_settings(request.settings):
                builder, _ = self._builder_for(request)
                key = builder.key(builder.region_task(request.graph, instance, request.layouts, task.as_general))
                if key.digest != task.digest or self._store.load(key, request.backend) is not None:
                    continue
                args = make_arguments(request.graph, request.layouts)
            missing.setdefault(builder, []).append((instance.region, pick(args, instance.inputs)))
        for builder, regions in missing.items():
            if len(regions) > 1:
                with apply_torch_settings(builder.settings):
                    process_starts().start(builder.backend, regions[0][0], self._note_start)
                    stack.enter_context(builder.backend.compiled_together(regions, progress))

    def _build(self, task: CompileTask) -> TaskOutcome:
        request, instance = task.request, task.instance
        builder, reasons = self._builder_for(request)
        region_task = builder.region_task(request.graph, instance, request.layouts, task.as_general)
        key = builder.key(region_task)
        if task.digest not in ("", key.digest):
            return TaskOutcome("refused", OTHER_KEY, temporary=True)
        found = self._store.load(key, request.backend)
        if found is not None:
            return _outcome_of(found)
        if self.dry_run:
            return TaskOutcome("compiled")
        reasons.clear()
        try:
            assert region_task.instance is not None
            args = pick(make_arguments(request.graph, request.layouts), region_task.instance.inputs)
            built = builder.build(region_task, args)
        except Declined as declined:
            if not task.as_general or declined.scope is Scope.TURN:
                declined.require(Scope.TURN)
                return TaskOutcome("refused", ELSEWHERE, temporary=True)
            declined.require(Scope.GENERAL, Scope.STORING_NOW)
            built = None  # up to here the exception's frames hold device memory
        if built is None:
            return self._build(replace(task, digest="", as_general=None))  # the request that the call falls back to
        is_kept = self._store.entry(key.digest, request.backend) is not None
        if reasons:
            return TaskOutcome("refused", reasons[-1], temporary=not is_kept)  # a permanent refusal is stored
        if not is_kept:
            return TaskOutcome("refused", NOT_STORED)
        return TaskOutcome("ready" if built.loaded else "compiled")

    def _builder_for(self, request: Request) -> tuple[Builder, list[str]]:
        """Returns the ``Builder`` for a request's backend, made once, and a list that receives its bypass reasons.

        Raises:
            Declined: if there is no such backend here, or it stores nothing.
        """
        identity = (request.backend, repr(sorted(request.options.items())), repr(sorted(request.settings.items())))
        if identity not in self._builders:
            try:
                backend = make_backend(request.backend, **request.options)
            except (ValueError, TypeError) as error:
                logger.info("no backend %s", request.backend, exc_info=error)
                raise Declined(f"no backend {request.backend} here", Scope.REQUEST) from error
            if backend.artifact_environment() is None:
                raise Declined(f"backend {request.backend} stores nothing", Scope.REQUEST)
            reasons: list[str] = []
            try:
                environment = backend.environment()
            except Declined as bypass:
                bypass.require(Scope.REGION)
                raise Declined(bypass.reason, Scope.REQUEST) from bypass
            how: dict[str, Any] = {"on_start": self._note_start, "patience": self.patience}
            builder = Builder(backend, self._store, Ranks(), environment, reasons.append, request.settings, **how)
            self._builders[identity] = builder, reasons
        return self._builders[identity]

    def _note_start(self, title: str, seconds: float) -> None:
        self.starting += seconds


def _outcome_of(artifacts: Mapping[str, bytes]) -> TaskOutcome:
    """Returns the outcome for artifacts stored for this environment: an executable or a refusal."""
    reason = artifacts.get(REFUSED)
    return TaskOutcome("ready") if reason is None else TaskOutcome("refused", unstored(reason.decode(errors="replace")))
