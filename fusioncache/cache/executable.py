"""The functions of a graph, at most one for each layout: loaded from the store, or compiled once for all processes.

One builder compiles both kinds of task: a region for arguments of some layouts, and a region for any sizes. The first
is the case without variables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from fusioncache.backends.api import Backend, Compiled, OnStart, Run, ignore_start, process_starts
from fusioncache.cache.peers import Helpers, Ranks, StoreRequest, Wait
from fusioncache.cache.relatives import RELATIVES, encode_relatives
from fusioncache.ir import Declined, GeneralInstance, Graph, Instance, Key, Scope, is_declined
from fusioncache.ir.graph import inverse, pick, picker
from fusioncache.ir.ops import writes_in_place, writes_of
from fusioncache.ir.template import ArgumentLayouts, Option, Request, decode_region, encode_region, encode_request
from fusioncache.process import forks
from fusioncache.process.warning import logger
from fusioncache.store import Store, StoredArtifacts
from fusioncache.store.entry import REFUSED
from fusioncache.store.locks import TOO_LONG
from fusioncache.store.store import COMPILE_SECONDS
from fusioncache.template.generalization import identity_instance, in_order_of_template
from fusioncache.template.key import artifact_key, template_name
from fusioncache.template.strides import depends_on_operand_order

REGION = "region"
"""The artifact with the region that was compiled, and its mapping to the values of the graph."""
REQUEST = "request"
"""The artifact with the request, so that another process can repeat it. It does not depend on versions."""

_STALE = "an artifact that does not load"
_REJECTED, _LAUNCH = "rejected: ", "does not launch: "
"""Prefixes of a stored note that the compiler rejects a region, or that its function does not launch."""
_MOST_LAYOUTS = 1024


class RejectedRegion(Exception):
    """A compiler rejects a region, or its compiled function does not run. The message is the compiler's, in one line.

    Attributes:
        is_new: whether to store the rejection once a substitute has run.
        of_launch: whether a launch failed, which says nothing of other sizes.
    """

    def __init__(self, reason: str, *, is_new: bool = False, of_launch: bool = False):
        super().__init__(reason)
        self.is_new, self.of_launch = is_new, of_launch


@dataclass(frozen=True, slots=True)
class BuiltFunction[F]:
    """A function, with its origin and cost.

    Attributes:
        run: the function: of a region's inputs, or a ``GeneralFunction``.
        instance: the region, and its mapping to the graph's values; None for any sizes.
        key: its key in the store; None if there is no store, or if a function for any sizes could not be stored.
        loaded: whether it was loaded rather than compiled here.
        compile_seconds: time to compile it without making its artifacts; 0 if equal to ``seconds``.
        seconds: time that compiling or loading it took here.
        helped: whether it was loaded because a helper of this process had just compiled it.
        compiled_here: whether it was loaded because this process had compiled it while it waited for a helper.
        correction: seconds to add: those of earlier work for it, less those of the compiler's start and of waiting.
        exact_run: a faster function with the same results, for the exact layouts of the build, or None.
    """

    run: F
    instance: Instance | None = None
    key: Key | None = None
    loaded: bool = False
    compile_seconds: float = 0.0
    seconds: float = 0.0
    helped: bool = False
    compiled_here: bool = False
    correction: float = 0.0
    exact_run: Run | None = None

    @property
    def cost(self) -> float:
        """Seconds to compile it without making its artifacts."""
        return self.compile_seconds or (0.0 if self.loaded else self.seconds)


@dataclass(frozen=True, slots=True)
class Task[F]:
    """A function to compile. Its arguments are tensors and numbers as the region's inputs.

    Attributes:
        graph: the graph by which the store names it.
        key: returns its key in the store for an environment.
        compile: compiles the function.
        persist: compiles the function, and returns its artifacts, or the reason why there are none.
        load: makes the function from artifacts. Raises any exception if they are unusable.
        instance: the region, and its mapping to the graph's values; None for any sizes.
        request: the data that another process needs to request the same; None for any sizes.
        as_general: the region as an instance of a general one, if its code is derived from that one's; else None.
        own_instance: the region as it would be compiled alone, if ``as_general`` is given.
    """

    graph: Graph
    key: Callable[[Mapping[str, str]], Key]
    compile: Callable[[Sequence[Any]], F]
    persist: Callable[[Sequence[Any]], Compiled[F]]
    load: Callable[[Mapping[str, bytes], Sequence[Any]], BuiltFunction[F]]
    instance: Instance | None = None
    request: Request | None = None
    as_general: GeneralInstance | None = None
    own_instance: Instance | None = None

    def describe(self) -> dict[str, bytes]:
        """Returns the artifacts that the backend does not make."""
        if self.instance is None or self.request is None:
            return {}
        as_general, own = self.as_general, self.own_instance
        relatives = {RELATIVES: encode_relatives(as_general.general.regions, own)} if as_general and own else {}
        return {REGION: encode_region(self.instance), REQUEST: encode_request(self.request), **relatives}


def _load_region(
    backend: Backend, instance: Instance, artifacts: Mapping[str, bytes], args: Sequence[Any]
) -> BuiltFunction[Run]:
    """Loads the function of a region. The stored region may have its values in another order than this one."""
    stored = decode_region(artifacts[REGION])
    if _types(stored) != _types(instance) or len(stored.outputs) != len(instance.outputs):
        raise ValueError("a stored region with other inputs or outputs")
    of_graph = pick(args, inverse(instance.inputs))
    return BuiltFunction(backend.load(artifacts, stored.region, pick(of_graph, stored.inputs)), stored)


def _types(instance: Instance) -> dict[int, Any]:
    return dict(zip(instance.inputs, instance.region.inputs, strict=True))


@dataclass(slots=True, eq=False)
class Builder:
    """Builds functions with a backend. With a store, it loads each, or else compiles it once for all processes.

    Attributes:
        backend: compiles, and loads compiled functions.
        store: where artifacts are stored; None if each function is compiled for this process alone, or if the backend
            makes no artifacts.
        ranks: the other processes of the job.
        environment: of the backend, when the build was requested. That of its artifacts is added to it.
        refused: called with the reason if a function could not be stored.
        settings: settings of this process that another one must apply to request the same.
        helpers: returns the helpers that compile for this process; None if there are none now.
        on_start: called when the compiler starts for this builder.
        patience: how many seconds to wait for another process of this machine that compiles the same. If it is 0,
            ``build`` raises ``Declined`` while another process compiles it.
    """

    backend: Backend
    store: Store | None = None
    ranks: Ranks = field(default_factory=Ranks)
    environment: Mapping[str, str] = MappingProxyType({})
    refused: Callable[[str], None] = lambda _: None
    settings: Mapping[str, Option] = MappingProxyType({})
    _: KW_ONLY
    helpers: Callable[[], Helpers | None] = lambda: None
    on_start: OnStart = ignore_start
    patience: float = COMPILE_SECONDS

    def __post_init__(self) -> None:
        """Drops the store if the backend makes no artifacts."""
        if self.store and self.backend.artifact_environment() is None:
            self.store = None

    def region_task(
        self, graph: Graph, instance: Instance, layouts: ArgumentLayouts, as_general: GeneralInstance | None = None
    ) -> Task[Run]:
        """Returns the task to compile a region for arguments of some layouts.

        Args:
            graph: the graph to compute.
            instance: the region to compile, if there is no function yet.
            layouts: of the arguments of the graph. The function need not be correct for others.
            as_general: the region as an instance of a general one, to derive its code from the general code. Its inputs
                and outputs are in the order of the graph.
        """
        backend = self.backend
        task = Task(
            graph,
            key=lambda environment: artifact_key(graph, environment, layouts, instance),
            compile=partial(backend.compile, instance.region),
            persist=partial(backend.persist, instance.region),
            load=partial(_load_region, backend, instance),
            instance=instance,
            request=Request(graph, layouts, backend.name, backend.options(), self.settings),
        )
        if as_general is None:
            return task
        source = identity_instance(in_order_of_template(instance))
        return replace(
            task,
            key=lambda environment: artifact_key(graph, environment, layouts, source, of_any_sizes=True),
            persist=partial(backend.persist_size, as_general, source.region),
            load=partial(_load_region, backend, source),
            instance=source,
            as_general=as_general,
            own_instance=instance,
        )

    def key(self, task: Task[Any]) -> Key:
        """Returns the task's key in the store."""
        return task.key({**self.environment, **(self.backend.artifact_environment() or {})})

    def foresee(self, task: Task[Run]) -> StoreRequest | None:
        """Returns the store request that ``build`` will make; None if the store is not used for this task."""
        if self.store is None or self.backend.find_obstacle(task.graph) is not None:
            return None
        assert task.request is not None and task.instance is not None
        return StoreRequest(self.key(task), task.request, task.instance, task.as_general)

    def has(self, request: StoreRequest, *, refused: bool = False) -> bool:
        """True if the store has an entry with artifacts; with ``refused``, if the entry says that there are none."""
        entry = self.store.entry(request.key.digest, request.request.backend) if self.store else None
        return entry is not None and refused is any(part.name == REFUSED for part in entry.artifacts)

    def load(self, task: Task[Run], args: Sequence[Any]) -> BuiltFunction[Run] | None:
        """Returns the same as ``build`` if that need not compile; None otherwise.

        Raises:
            RejectedRegion: if the store says that the compiler rejects the region.
        """
        if self.store is None or self.backend.find_obstacle(task.graph) is not None:
            return None
        start, key = time.perf_counter(), self.key(task)
        stored = self.store.load(key, self.backend.name)
        if stored is not None and REFUSED in stored:
            _raise_stored_rejection(stored)
            return None
        built = None if stored is None else self._load(task, args, key, stored)
        return built and replace(built, seconds=time.perf_counter() - start)

    def build[F](self, task: Task[F], args: Sequence[Any]) -> BuiltFunction[F]:
        """Builds a function. One that is loaded is for arguments of exactly the task's layouts.

        Raises:
            RejectedRegion: if the compiler rejects the region, or rejected it before.
            Declined: if another process compiles it and ``patience`` is 0, or if its code cannot be derived.
            Exception: any other error of the backend.
        """
        start, store = time.perf_counter(), self.store
        if store is None:
            built = self._compile(task, args)
            return replace(built, seconds=time.perf_counter() - start + built.correction)
        key, name = self.key(task), self.backend.name
        helpers = self.helpers() if task.instance else None
        wait = self._wait_for(helpers, key)
        stored = store.load(key, name)
        if stored is None and helpers is not None and not wait.by_helper and helpers.note_missing():
            wait = self._wait_for(helpers, key)
            stored = store.load(key, name)
        if stored is None and wait.by_helper and task.as_general:
            raise Declined("another process compiled it for one size", Scope.STORING_NOW)
        loaded = None if stored is None else self._load(task, args, key, stored)
        if loaded is None:
            with self.ranks.turn(key, name) as turn:
                loaded = None if turn.artifacts is None else self._load(task, args, key, turn.artifacts)
                if loaded is None:
                    loaded, artifacts = self._compile_once(task, args, key, store)
                    turn.publish(artifacts)
        built = loaded
        if built.loaded:
            here = wait.seconds_here
            built = replace(built, helped=wait.by_helper, compiled_here=bool(here), correction=here)
        correction = built.correction - wait.seconds_on_others - wait.start_seconds
        return replace(built, seconds=time.perf_counter() - start + correction)

    def _wait_for(self, helpers: Helpers | None, key: Key) -> Wait:
        wait = Wait() if helpers is None else helpers.wait_for(key)
        if wait.start_seconds:
            self.on_start(self.backend.title, wait.start_seconds)
        return wait

    def _compile[F](self, task: Task[F], args: Sequence[Any], key: Key | None = None) -> BuiltFunction[F]:
        """Compiles a function without storing it."""
        started = self._start(task)
        if task.as_general:
            made = task.persist(args)
            seconds = made.alone_seconds or 0.0
            return BuiltFunction(made.run, task.instance, compile_seconds=seconds, correction=-started)
        return BuiltFunction(task.compile(args), task.instance, key, correction=-started)

    def _start(self, task: Task[Any]) -> float:
        """Starts the compiler if it has not compiled yet. Returns the seconds, which do not count as compile time."""
        return process_starts().start(self.backend, task.graph, self.on_start)

    def _load[F](
        self, task: Task[F], args: Sequence[Any], key: Key, artifacts: StoredArtifacts
    ) -> BuiltFunction[F] | None:
        """Returns the function of stored artifacts. If they do not load, removes them and returns None.

        Raises:
            RejectedRegion: if the store says that the compiler rejects the region.
            Declined: if the store says that no code for one size can be derived from code for any.
        """
        if REFUSED in artifacts:
            reason = artifacts[REFUSED].decode(errors="replace")
            if task.as_general:
                raise Declined(reason.removeprefix(_REJECTED).removeprefix(_LAUNCH), Scope.GENERAL)
            _raise_stored_rejection(artifacts)
            self.refused(unstored(reason))
            return self._compile(task, args, key if task.instance else None)
        try:
            return replace(task.load(artifacts, args), key=key, loaded=True, compile_seconds=artifacts.seconds)
        except Exception as error:  # any: the region can be compiled instead
            logger.info("a stored executable for %s does not load", key.digest[:12], exc_info=error)
            assert self.store is not None
            self.store.discard(key, self.backend.name, f"{_STALE}: {type(error).__name__}")
            return None

    def _compile_once[F](
        self, task: Task[F], args: Sequence[Any], key: Key, store: Store
    ) -> tuple[BuiltFunction[F], StoredArtifacts | None]:
        """Compiles while the other processes of this machine wait for it, and stores the artifacts."""
        with store.take_turn(key, self.backend.name, self.patience) as turn:
            built = None if turn.artifacts is None else self._load(task, args, key, turn.artifacts)
            if built:
                return built, turn.artifacts
            if turn.lock_problem == TOO_LONG and not self.patience:
                raise Declined("another process compiles it", Scope.TURN)
            started = self._start(task)
            start = time.perf_counter()
            try:
                compiled = task.persist(args)
            except Exception as error:
                self._raise_rejection(task, key, error)
                if task.as_general and is_declined(error, Scope.GENERAL):
                    self._save(task, key, {REFUSED: error.reason.encode()}, 0.0)
                raise
            alone = compiled.alone_seconds
            seconds = time.perf_counter() - start if alone is None else alone
            stored = self._store_compiled(task, key, compiled, seconds)
            built = BuiltFunction(
                compiled.run,
                task.instance,
                key if task.instance or (stored and compiled.artifacts) else None,
                compile_seconds=alone or 0.0,
                exact_run=compiled.exact_run,
                correction=-started,
            )
            return built, stored

    def _raise_rejection(self, task: Task[Any], key: Key, error: Exception) -> None:
        """Stores the rejection and raises it, if the error is a rejection by the compiler.

        Raises:
            RejectedRegion: if it is.
        """
        reason = self.backend.find_rejection(error) if task.instance else None
        if reason is not None:
            self._save(task, key, {REFUSED: f"{_REJECTED}{reason}".encode()}, 0.0)
            raise RejectedRegion(reason) from error

    def reject(self, task: Task[Run], rejection: RejectedRegion) -> None:
        """Replaces the stored function of a region by a note that it does not launch, if there is a store."""
        if self.store is not None and self.backend.find_obstacle(task.graph) is None:
            key = self.key(task)
            self.store.remove(key, self.backend.name)
            self._save(task, key, {REFUSED: f"{_LAUNCH}{rejection}".encode()}, 0.0)

    def _store_compiled(
        self, task: Task[Any], key: Key, compiled: Compiled[Any], seconds: float
    ) -> StoredArtifacts | None:
        """Stores the artifacts, or else a note that there will never be any. Returns the stored artifacts, or None."""
        artifacts = compiled.artifacts
        if artifacts is None:
            if compiled.reason is None:
                return None
            logger.info("cannot be stored: %s", compiled.reason)
            self.refused(unstored(compiled.reason))
            if not compiled.is_permanent:
                return None
            artifacts = {REFUSED: compiled.reason.encode()}
        return self._save(task, key, artifacts, seconds)

    def _save(
        self, task: Task[Any], key: Key, artifacts: Mapping[str, bytes], seconds: float
    ) -> StoredArtifacts | None:
        """Stores artifacts if they still match the key: settings may change while a process compiles."""
        if self.backend.environment() != self.environment or self.key(task) != key:
            self.refused(unstored("settings changed while it was compiled"))
            return None
        assert self.store is not None
        artifacts = {**artifacts, **task.describe()}
        self.store.save(key, self.backend.name, artifacts, name=template_name(task.graph, key), seconds=seconds)
        if self.store.directory is None:
            self.refused(unstored("the store's directory cannot be used"))
        return StoredArtifacts(artifacts, seconds)


def _raise_stored_rejection(artifacts: Mapping[str, bytes]) -> None:
    """Raises ``RejectedRegion`` if a stored note that there is no code says that the compiler rejects the region."""
    reason = artifacts[REFUSED].decode(errors="replace")
    for prefix in (_REJECTED, _LAUNCH):
        if reason.startswith(prefix):
            raise RejectedRegion(reason.removeprefix(prefix), of_launch=prefix == _LAUNCH)


def unstored(reason: str) -> str:
    """Returns the reason that is counted, at each start, for compiling a function again that cannot be stored."""
    return f"cannot be stored: {reason}"


class Executable:
    """Builds the functions of a graph, at most one for each layout, for all threads and templates that request it.

    The backend compiles the first region that had this graph, in that region's order: nvFuser splits and schedules a
    kernel by the order of its definition, so the canonical order might give other bits than Thunder's. Regions of one
    graph differ only in the order of definitions and of commutative operands, and share a function. If the order of
    operands affects results for the layouts of the arguments, each region compiles its own function.

    Args:
        graph: the graph to compute, in canonical order.
        builder: builds the functions.
        instance: the region that the graph comes from.
    """

    __slots__ = ("_builder", "_exact", "_instance", "_lock", "_sources", "_variants", "graph")

    def __init__(self, graph: Graph, builder: Builder, instance: Instance | None = None):
        self.graph = graph
        self._builder = builder
        self._instance = instance or identity_instance(graph)
        self._variants: dict[tuple[Hashable, Instance | None], Run] = {}
        self._exact: dict[tuple[ArgumentLayouts, Instance | None, bool], tuple[Run, GeneralInstance | None]] = {}
        self._sources: list[Graph] = []
        self._lock = forks.lock()

    @property
    def sources(self) -> tuple[Graph, ...]:
        """The regions that functions were compiled from. Before the first build: the region that will be compiled."""
        return tuple(self._sources) or (self._instance.region,)

    @property
    def is_built(self) -> bool:
        """Whether it has a function for any layout."""
        return bool(self._variants or self._exact)

    def add_source(self, source: Graph) -> None:
        """Adds a region that one of its functions was compiled from."""
        with self._lock:
            if source not in self._sources:
                self._sources.append(source)

    def run_for(
        self,
        args: Sequence[Any],
        layouts: ArgumentLayouts,
        on_build: OnBuild,
        instance: Instance | None = None,
        as_general: GeneralInstance | None = None,
    ) -> Run:
        """Returns the function for arguments of this layout.

        Args:
            args: tensors and numbers as the graph's inputs.
            layouts: of the arguments.
            on_build: called with the function, if this call had to compile or load it.
            instance: the region that needs the function, if it may differ from the first.
            as_general: the region as an instance of a general one, to derive the code of a new function from the
                general code. Only calls with ``as_general`` get such a function, because a sum may have other bits.

        Raises:
            Declined: if no code for one size can be derived from code for any.
            Exception: any error of the backend.
        """
        run = self._find_known(layouts, instance, as_general)
        run = run or self._build(args, layouts, on_build, instance, self._builder.build, as_general)
        assert run is not None
        return run

    def find_for(
        self, args: Sequence[Any], layouts: ArgumentLayouts, on_build: OnBuild, instance: Instance | None = None
    ) -> Run | None:
        """Returns the same as ``run_for`` if that need not compile; None otherwise."""
        return self._find_known(layouts, instance) or self._build(args, layouts, on_build, instance, self._builder.load)

    def reject(self, layouts: ArgumentLayouts, rejection: RejectedRegion, instance: Instance | None = None) -> None:
        """Stores that the function does not launch for arguments of this layout, under the key it was compiled with.

        If that was the key of code for any sizes, later processes compile the region for its own sizes.
        """
        _, as_general = self._exact.get((layouts, self._find_own(layouts, instance), True), (None, None))
        task = self._builder.region_task(self.graph, self.source_for(layouts, instance), layouts, as_general)
        self._builder.reject(task, rejection)

    def source_for(self, layouts: ArgumentLayouts, instance: Instance | None = None) -> Instance:
        """Returns the region that would be compiled for arguments of these layouts."""
        return self._find_own(layouts, instance) or self._instance

    def foresee(
        self, layouts: ArgumentLayouts, instance: Instance | None = None, as_general: GeneralInstance | None = None
    ) -> StoreRequest | None:
        """Returns the store request of the first call with these layouts; None if it cannot be foreseen.

        It cannot be foreseen if the executable was called before: an existing function may serve these layouts, too.

        Args:
            layouts: of the arguments, as far as known now.
            instance: the region that will call, if it may differ from the first.
            as_general: as for ``run_for``. An entry compiled for these sizes alone comes first.
        """
        if self.is_built:
            return None
        source, builder = self.source_for(layouts, instance), self._builder
        alone = builder.foresee(builder.region_task(self.graph, source, layouts))
        if alone is None or as_general is None or builder.has(alone):
            return alone
        other = builder.foresee(builder.region_task(self.graph, source, layouts, as_general))
        if other is None or builder.has(other, refused=True):
            return alone
        return replace(other, instance=source)  # compiled alone if its code cannot be derived

    def _find_own(self, layouts: ArgumentLayouts, instance: Instance | None) -> Instance | None:
        """Returns the region to compile if the layouts show the order of operands; None if all share a function."""
        return (instance or self._instance) if depends_on_operand_order(self.graph, layouts) else None

    def _find_known(
        self, layouts: ArgumentLayouts, instance: Instance | None, as_general: GeneralInstance | None = None
    ) -> Run | None:
        owners = None, instance or self._instance
        found = (self._exact.get((layouts, own, as_general is not None)) for own in owners)
        return next((known[0] for known in found if known is not None), None)

    def _build(
        self,
        args: Sequence[Any],
        layouts: ArgumentLayouts,
        on_build: OnBuild,
        instance: Instance | None,
        build: Callable[[Task[Run], Sequence[Any]], BuiltFunction[Run] | None],
        as_general: GeneralInstance | None = None,
    ) -> Run | None:
        """Returns another layout's function that serves these, or builds one; None if ``build`` returns None."""
        own = self._find_own(layouts, instance)
        variant, exact = (self._builder.backend.layout(layouts), own), (layouts, own, as_general is not None)
        with self._lock:
            alone = self._variants.get(variant)
            known = self._exact.get(exact) or (alone and (alone, None))
            if known is None:
                source = own or self._instance
                if writes_in_place(self.graph):
                    args = _copy_written(self.graph, args)
                task = self._builder.region_task(self.graph, source, layouts, as_general)
                assert task.instance is not None
                built = build(task, pick(args, task.instance.inputs))
                if built is None:
                    return None
                assert built.instance is not None
                run = reorder(built.run, built.instance, len(args))
                for each in (built.instance.region, *([as_general.general.graph] if as_general else [])):
                    self.add_source(each)  # takes the lock again, which is reentrant
                if not built.loaded and as_general is None:  # else it is for exactly these strides
                    self._variants[variant] = run
                if built.exact_run is not None:
                    run = reorder(built.exact_run, built.instance, len(args))
                on_build(self, built)
                known = run, as_general
            if len(self._exact) >= _MOST_LAYOUTS:
                self._exact.clear()
            self._exact[exact] = known
        return known[0]


OnBuild = Callable[[Executable, BuiltFunction[Run]], None]
"""Called with an executable and its function that was compiled or loaded."""


def _copy_written(graph: Graph, args: Sequence[Any]) -> Sequence[Any]:
    """Copies, with their layout, the arguments that the graph writes into, because compiling runs the graph once."""
    written = {target for _, target in writes_of(graph)}
    return [_copy(arg) if index in written else arg for index, arg in enumerate(args)]


def _copy(tensor: Any) -> Any:
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())


def reorder(run: Run, instance: Instance, inputs: int) -> Run:
    """Returns the function of a region with inputs and outputs in the order of its graph."""
    take, give = picker(instance.inputs, inputs), picker(instance.outputs, len(instance.region.outputs))
    if take and give:
        return lambda args: give(run(take(args)))
    if take:
        return lambda args: run(take(args))
    return (lambda args: give(run(args))) if give else run
