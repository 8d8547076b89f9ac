"""Does the task that an entry or a call asks for, for this device and these versions, if that is not there yet."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from fusioncache.accelerators.precompile.arguments import (
    available_device_types,
    make_arguments,
    on_gpu,
    release_memory,
)
from fusioncache.accelerators.precompile.requests import CompileTask
from fusioncache.backends.api import OnStart, Progress, device_types_of, ignore_start, make_backend, process_starts
from fusioncache.backends.torch_settings import apply_torch_settings
from fusioncache.cache.executable import Builder, not_kept
from fusioncache.cache.peers import Ranks
from fusioncache.ir import Declined, Graph, Scope, is_declined
from fusioncache.ir.graph import pick
from fusioncache.ir.template import Request
from fusioncache.store import Store
from fusioncache.store.entry import REFUSED
from fusioncache.store.store import COMPILE_SECONDS

logger = logging.getLogger("fusioncache")

FAILED, NOT_STORED = "failed", "not stored"
DIED = "worker died"
ELSEWHERE, OTHER_KEY = "another process is at it", "other settings here"

Result = Literal["compiled", "ready", "refused"]


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of a task.

    Attributes:
        result: whether it was compiled, was ready before, or was refused.
        reason: why it was refused.
        passing: whether another time it may not be, with nothing changed.
        seconds: that it took in another process.
        on_start: those of them in which a compiler started.
    """

    result: Result
    reason: str = ""
    passing: bool = False
    seconds: float = 0.0
    on_start: float = 0.0


NO_WORKER = TaskOutcome("refused", "no worker starts", passing=True)


class EntryCompiler:
    """Compiles what entries of one store ask for, and calls of other processes.

    Args:
        store: the store, which the executables go into as well.
        dry_run: whether to compile nothing, and say what would be compiled.
        patience: how many seconds to wait for another process that compiles the same. With 0 that is refused.
        releases: whether to give back to the device, after each, the unused memory that torch holds.
        on_start: is told of a compiler's start in this process.
    """

    def __init__(
        self,
        store: Store,
        *,
        dry_run: bool = False,
        patience: float = COMPILE_SECONDS,
        releases: bool = True,
        on_start: OnStart = ignore_start,
    ):
        self._store = store
        self._releases = releases
        self._dry_run = dry_run
        self._patience = patience
        self._on_start = on_start
        self._builders: dict[tuple[str, str, str], tuple[Builder, list[str]]] = {}

    def compile(self, task: CompileTask) -> TaskOutcome:
        """Does a task, if it is for this device and these versions. Raises nothing: what goes wrong is the outcome."""
        try:
            missing = device_types_of(task.request.graph) - available_device_types()
            if missing:
                return TaskOutcome("refused", f"other device type: {', '.join(sorted(missing))}")
            with on_gpu(task.device), apply_torch_settings(task.request.settings):
                return self._build(task)
        except Exception as error:  # whatever it is, others can be compiled
            if is_declined(error, Scope.REQUEST):
                return TaskOutcome("refused", error.reason)
            logger.info("a task fails", exc_info=error)
            return TaskOutcome("refused", f"{FAILED}: {type(error).__name__}")
        finally:
            if self._releases:
                release_memory()

    def compile_together(self, tasks: Sequence[CompileTask], progress: Progress) -> list[TaskOutcome]:
        """Does several tasks together, where that is faster. Raises nothing."""
        with ExitStack() as stack:
            try:
                self._enter_together(stack, tasks, progress)
            except Exception as error:  # each is compiled alone
                logger.info("regions are not compiled together", exc_info=error)
            return [self.compile(task) for task in tasks]

    def _enter_together(self, stack: ExitStack, tasks: Sequence[CompileTask], progress: Progress) -> None:
        """Has the backends compile the missing executables of requests together."""
        missing: dict[Builder, list[Request]] = {}
        regions: dict[Builder, list[tuple[Graph, Sequence[Any]]]] = {}
        for task in tasks:
            asked, instance = task.request, task.instance
            with apply_torch_settings(asked.settings):
                builder, _ = self._builder_for(asked)
                key = builder.key(builder.region_task(asked.graph, instance, asked.layouts))
                if key.digest != task.digest or self._store.load(key, asked.backend) is not None:
                    continue
                args = make_arguments(asked.graph, asked.layouts)
            missing.setdefault(builder, []).append(asked)
            regions.setdefault(builder, []).append((instance.region, pick(args, instance.inputs)))
        for builder, asks in missing.items():
            if len(asks) > 1:
                with apply_torch_settings(asks[0].settings):
                    graph, _ = regions[builder][0]
                    process_starts().start(builder.backend, graph, self._on_start, joined=True)
                    stack.enter_context(builder.backend.compiled_together(regions[builder], progress))

    def _build(self, task: CompileTask) -> TaskOutcome:
        asked, instance = task.request, task.instance
        builder, reasons = self._builder_for(asked)
        key = builder.key(builder.region_task(asked.graph, instance, asked.layouts))
        if task.digest not in ("", key.digest):
            return TaskOutcome("refused", OTHER_KEY, passing=True)
        found = self._store.load(key, asked.backend)
        if found is not None:
            return _outcome_of(found)
        if self._dry_run:
            return TaskOutcome("compiled")
        reasons.clear()
        try:
            args = make_arguments(asked.graph, asked.layouts)
            built = builder.build(builder.region_task(asked.graph, instance, asked.layouts), args)
        except Declined as declined:
            declined.require(Scope.TURN)
            return TaskOutcome("refused", ELSEWHERE, passing=True)
        is_kept = self._store.entry(key.digest, asked.backend) is not None
        if reasons:
            return TaskOutcome("refused", reasons[-1], passing=not is_kept)  # what is so for good leaves a note
        if not is_kept:
            return TaskOutcome("refused", NOT_STORED)
        return TaskOutcome("ready" if built.loaded else "compiled")

    def _builder_for(self, asked: Request) -> tuple[Builder, list[str]]:
        """Returns what builds with the backend of a request, made once, and its reasons not to persist.

        Raises:
            Declined: if there is no such backend here, or it keeps nothing.
        """
        identity = (asked.backend, repr(sorted(asked.options.items())), repr(sorted(asked.settings.items())))
        if identity not in self._builders:
            try:
                backend = make_backend(asked.backend, **asked.options)
            except (ValueError, TypeError) as error:
                logger.info("no backend %s", asked.backend, exc_info=error)
                raise Declined(f"no backend {asked.backend} here", Scope.REQUEST) from error
            if backend.artifact_environment() is None:
                raise Declined(f"backend {asked.backend} stores nothing", Scope.REQUEST)
            reasons: list[str] = []
            try:
                environment = backend.environment()
            except Declined as bypass:
                bypass.require(Scope.REGION)
                raise Declined(bypass.reason, Scope.REQUEST) from bypass
            how: dict[str, Any] = {"on_start": self._on_start, "patience": self._patience}
            builder = Builder(backend, self._store, Ranks(), environment, reasons.append, asked.settings, **how)
            self._builders[identity] = builder, reasons
        return self._builders[identity]


def _outcome_of(artifacts: Mapping[str, bytes]) -> TaskOutcome:
    """Returns what an entry for this very environment comes to."""
    reason = artifacts.get(REFUSED)
    return TaskOutcome("ready") if reason is None else TaskOutcome("refused", not_kept(reason.decode(errors="replace")))
