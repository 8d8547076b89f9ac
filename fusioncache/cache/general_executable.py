"""What is compiled for any sizes: one function for each kind of layout, from the store if it has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.backends.api import (
    Backend,
    CompiledGeneral,
    GeneralFunction,
    OnStart,
    Run,
    ignore_start,
    process_starts,
)
from fusioncache.cache.persistence import not_kept
from fusioncache.cache.reuse import Allowance
from fusioncache.ir import Declined, GeneralRegion, Graph, Key, Scope, Value, is_declined
from fusioncache.process import forks
from fusioncache.store import Store, StoredArtifacts
from fusioncache.template.general_region import Family
from fusioncache.template.generalization import fit_holes
from fusioncache.template.key import general_key
from fusioncache.template.name import template_name

logger = logging.getLogger("fusioncache")

_STALE = "an artifact for any sizes that does not load"


@dataclass(frozen=True, slots=True)
class BuiltGeneral:
    """A function for any sizes.

    Attributes:
        function: itself.
        key: under which the store has it; None if it is not persisted.
        loaded: whether it was loaded, rather than compiled here.
        compile_seconds: that compiling what was loaded took, where it was compiled.
        seconds: that compiling or loading it took here.
        started: seconds that the compiler took to start for it.
    """

    function: GeneralFunction
    key: Key | None = None
    loaded: bool = False
    compile_seconds: float = 0.0
    seconds: float = 0.0
    started: float = 0.0

    @property
    def cost(self) -> float:
        """The seconds that compiling it took, here or where it was compiled."""
        return self.compile_seconds if self.loaded else self.seconds


@dataclass(frozen=True, slots=True)
class ServedGeneral:
    """What a function for any sizes is for one region.

    Attributes:
        run: computes it.
        built: the function.
        source: what that was compiled from.
        is_new: whether it was compiled or loaded for this region.
    """

    run: Run
    built: BuiltGeneral
    source: Graph
    is_new: bool = False


class GeneralBuilder:
    """Builds functions for any sizes with a backend: loaded if the store has them, else compiled and stored.

    Args:
        backend: compiles, and loads what it compiled.
        store: where artifacts are; None if there is none.
        refused: is told why a function could not be persisted.
        on_start: is told of the compiler's start, if it starts for this.

    Attributes:
        backend: the same.
        store: the same.
        environment: of the backend, when this was made.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        refused: Callable[[str], None] = lambda _: None,
        on_start: OnStart = ignore_start,
    ):
        self.backend = backend
        self.store = store
        self.environment: Mapping[str, str] = backend.environment()
        self._refused = refused
        self._on_start = on_start

    def build(self, general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]) -> BuiltGeneral:
        """Builds a function for arguments of this kind of layout.

        Args:
            general: what it is for.
            args: of one of its instances.
            values: of the variables there.

        Raises:
            Declined: if there can be none.
            Exception: whatever the backend raises.
        """
        start, key = time.perf_counter(), self._key(general, args)
        built = self._load(general, args, key) or self._build_once(general, args, values, key)
        return replace(built, seconds=time.perf_counter() - start - built.started)

    def _key(self, general: GeneralRegion, args: Sequence[Any]) -> Key | None:
        """Returns the key of what is stored; None if nothing is."""
        artifact_environment = self.backend.artifact_environment() if self.store else None
        if artifact_environment is None:
            return None
        layout = repr(self.backend.general_layout(args))
        return general_key(general.graph, {**self.environment, **artifact_environment}, layout)

    def _load(self, general: GeneralRegion, args: Sequence[Any], key: Key | None) -> BuiltGeneral | None:
        stored = self.store.load(key, self.backend.name) if self.store and key else None
        return self._read(stored, general, args, key)

    def _read(
        self, stored: StoredArtifacts | None, general: GeneralRegion, args: Sequence[Any], key: Key | None
    ) -> BuiltGeneral | None:
        """Loads what is stored, if anything is. What does not load is removed."""
        if stored is None or self.store is None or key is None:
            return None
        try:
            function = self.backend.load_general(stored, general, args)
        except Exception as error:  # whatever it is, the region can be compiled
            logger.info("stored code for any sizes for %s does not load", key.digest[:12], exc_info=error)
            self.store.discard(key, self.backend.name, f"{_STALE}: {type(error).__name__}")
            return None
        return BuiltGeneral(function, key, loaded=True, compile_seconds=stored.seconds)

    def _build_once(
        self, general: GeneralRegion, args: Sequence[Any], values: Sequence[Value], key: Key | None
    ) -> BuiltGeneral:
        """Compiles while the other processes of this machine that want the same wait."""
        if self.store is None or key is None:
            started = self._start(general)
            return BuiltGeneral(self.backend.compile_general(general, args, values), started=started)
        with self.store.take_turn(key, self.backend.name) as turn:
            built = self._read(turn.artifacts, general, args, key)
            if built is None:
                started = self._start(general)
                start = time.perf_counter()
                compiled = self.backend.persist_general(general, args, values)
                kept = self._keep(general, args, key, compiled, time.perf_counter() - start)
                built = BuiltGeneral(compiled.function, key if kept else None, started=started)
            return built

    def _start(self, general: GeneralRegion) -> float:
        """Starts the compiler if it has not compiled yet. Returns the seconds, which are no part of a compile."""
        return process_starts().start(self.backend, general.graph, self._on_start)

    def _keep(
        self, general: GeneralRegion, args: Sequence[Any], key: Key, compiled: CompiledGeneral, seconds: float
    ) -> bool:
        """Stores what was compiled, if it can be, and is still for this key: settings may change meanwhile."""
        if compiled.artifacts is None or self.store is None:
            if compiled.reason is not None:
                self._refused(not_kept(compiled.reason))
            return False
        if self.backend.environment() != self.environment or self._key(general, args) != key:
            self._refused(not_kept("settings changed while it was compiled"))
            return False
        name = template_name(general.graph, key)
        return self.store.save(key, self.backend.name, compiled.artifacts, name=name, seconds=seconds)


class GeneralExecutable:
    """What was compiled for any sizes of a region, one function for each kind of layout of the arguments.

    Args:
        family: regions with one generalization.
        builder: compiles or loads.

    Attributes:
        family: the same.
        own: counts the sizes that got a function of their own.
    """

    def __init__(self, family: Family, builder: GeneralBuilder):
        self.family = family
        self.own = Allowance()
        self._builder = builder
        self._functions: dict[Hashable, BuiltGeneral | str] = {}
        self._lock = forks.lock()

    def values_of(self, holes: Sequence[Value]) -> tuple[Value, ...] | None:
        """Returns the values with which the generalization is a region; None if that is none of its instances.

        Args:
            holes: what is in those of the region, which has the skeleton of the family.
        """
        return fit_holes(self.family.generalization, holes)

    def serve(self, args: Sequence[Any], values: Sequence[Value]) -> ServedGeneral:
        """Returns the function for the arguments of an instance.

        Args:
            args: tensors, as the region's inputs.
            values: of the region's variables.

        Raises:
            Declined: if there is no such function.
            Exception: whatever the backend raises.
        """
        layout = self._builder.backend.general_layout(args)
        with self._lock:
            is_new = layout not in self._functions
            if is_new:
                self._functions[layout] = self._build(args, values)
            built = self._functions[layout]
        if isinstance(built, str):
            raise Declined(built, Scope.GENERAL)
        return ServedGeneral(built.function(args, values), built, self.family.general.graph, is_new)

    def serve_at_once(self, args: Sequence[Any], values: Sequence[Value]) -> ServedGeneral | None:
        """Does as ``serve`` if a function for this kind of layout is there and right for these; else returns None."""
        built = self._functions.get(self._builder.backend.general_layout(args))
        if built is None or isinstance(built, str):
            return None
        try:
            return ServedGeneral(built.function(args, values), built, self.family.general.graph)
        except Declined as declined:
            declined.require(Scope.GENERAL)
            return None

    def _build(self, args: Sequence[Any], values: Sequence[Value]) -> BuiltGeneral | str:
        """Returns what the builder makes, or why it makes nothing, which is not asked again.

        The reason is a text. An error that is kept would keep the frames that it came through, with all their tensors.
        """
        try:
            return self._builder.build(self.family.general, args, values)
        except Exception as error:
            if is_declined(error, Scope.GENERAL):
                return error.reason
            logger.info("nothing is compiled for any sizes", exc_info=error)
            return f"compile failed: {type(error).__name__}"
