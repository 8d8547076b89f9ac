"""Programs that outlive the process: loaded from the store where they are there, else compiled once for everybody."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusioncache.backends.api import Backend
from fusioncache.cache.program import Built
from fusioncache.cache.ranks import Ranks
from fusioncache.ir import Graph, Instance, Key, codec, request
from fusioncache.ir.permutation import pick
from fusioncache.ir.request import ArgumentLayouts, Option, Request
from fusioncache.store import Store, Stored
from fusioncache.store.entry import REFUSED
from fusioncache.template.key import artifact_key
from fusioncache.template.name import template_name

logger = logging.getLogger("fusioncache")

REGION = "region"
"""The artifact that says what was compiled, and how it lies in the graph."""
REQUEST = "request"
"""The artifact that says what was asked for, so that it can be asked again. It is the same whatever the versions."""

_STALE = "an artifact that does not load"


class PersistentBuilder:
    """Builds programs of one backend with a store.

    Args:
        store: where artifacts are.
        ranks: the other processes of the job.
        backend: compiles, and loads what it compiled.
        environment: of the backend, when the build was asked for. Those of its artifacts are added to it.
        refused: is told why a function could not be kept.
        settings: of this process that another one has to make to ask for the same.
    """

    def __init__(
        self,
        store: Store,
        ranks: Ranks,
        backend: Backend,
        environment: Mapping[str, str],
        refused: Callable[[str], None],
        settings: Mapping[str, Option] = {},
    ):
        self._store = store
        self._ranks = ranks
        self._backend = backend
        self._environment = environment
        self._refused = refused
        self._settings = settings

    def key(self, graph: Graph, place: ArgumentLayouts, instance: Instance) -> Key:
        """Returns the artifact key of what is stored."""
        environment = {**self._environment, **(self._backend.artifact_environment() or {})}
        return artifact_key(graph, environment, place, instance)

    def build(self, graph: Graph, instance: Instance, place: ArgumentLayouts, args: Sequence[Any]) -> Built:
        """See ``Builder`` in ``cache/program.py``."""
        key = self.key(graph, place, instance)
        found = self._store.load(key, self._backend.name)
        built = self._from(found, key, instance, args)
        if built is None:
            with self._ranks.turn(key, self._backend.name) as turn:
                built = self._from(turn.artifacts, key, instance, args)
                if built is None:
                    asked = Request(graph, place, self._backend.name, self._backend.options(), self._settings)
                    built, made = self._alone(key, asked, instance, args)
                    turn.publish(made)
        return built

    def _alone(self, key: Key, asked: Request, instance: Instance, args: Sequence[Any]) -> tuple[Built, Stored | None]:
        """Compiles while the other processes of this machine wait, and stores the artifacts."""
        with self._store.compiling(key, self._backend.name) as turn:
            built = self._from(turn.artifacts, key, instance, args)
            if built:
                return built, turn.artifacts
            start = time.perf_counter()
            built, own = self._compiled(instance, args)
            seconds = time.perf_counter() - start
            if own is None or not self._is_still_for(key, asked, instance):
                return built, None
            artifacts = {**own, REGION: codec.encode(instance), REQUEST: request.encode(asked)}
            name = template_name(asked.graph, key)
            self._store.save(key, self._backend.name, artifacts, name=name, seconds=seconds)
            if self._store.directory is None:
                self._refused(not_kept("the store's directory cannot be used"))
            return built, Stored(artifacts, seconds)

    def _is_still_for(self, key: Key, asked: Request, instance: Instance) -> bool:
        """Whether what was compiled just now is for this key: settings of a process may change while it compiles."""
        now = self.key(asked.graph, asked.layouts, instance)
        if self._backend.environment() == self._environment and now == key:
            return True
        self._refused("not kept: settings changed while it was compiled")
        return False

    def _from(self, artifacts: Stored | None, key: Key, instance: Instance, args: Sequence[Any]) -> Built | None:
        """What was kept, if anything; None if it does not load, and then it is gone."""
        if artifacts is None:
            return None
        if REFUSED in artifacts:
            self._refused(not_kept(artifacts[REFUSED].decode(errors="replace")))
            return Built(self._backend.compile(instance.region, pick(args, instance.inputs)), instance, loaded=False)
        try:
            stored = codec.decode(artifacts[REGION])
            _check(stored, instance)
            run = self._backend.load(artifacts, stored.region, pick(args, stored.inputs))
        except Exception as error:  # whatever it is, the region can be compiled
            logger.info("a stored program for %s does not load", key.digest[:12], exc_info=error)
            self._store.discard(key, self._backend.name, f"{_STALE}: {type(error).__name__}")
            return None
        return Built(run, stored, loaded=True, compile_seconds=artifacts.seconds)

    def _compiled(self, instance: Instance, args: Sequence[Any]) -> tuple[Built, Mapping[str, bytes] | None]:
        """Compiles. Gives what the backend keeps of it, or why it never will; None if another time it may."""
        made = self._backend.persist(instance.region, pick(args, instance.inputs))
        built = Built(made.run, instance, loaded=False)
        if made.artifacts is not None:
            return built, made.artifacts
        reason = made.reason or "for no given reason"
        logger.info("not kept: %s", reason)
        self._refused(not_kept(reason))
        return built, {REFUSED: reason.encode()} if made.lasting else None


def not_kept(reason: str) -> str:
    """How it is counted that a function is not kept, at each start that compiles it again."""
    return f"not kept: {reason}"


def _check(stored: Instance, instance: Instance) -> None:
    """Whether the stored region can take the place of this one.

    Raises:
        ValueError: if it has other inputs or outputs.
    """
    if _types(stored) != _types(instance) or len(stored.outputs) != len(instance.outputs):
        raise ValueError("a stored region with other inputs or outputs")


def _types(instance: Instance) -> dict[int, Any]:
    return dict(zip(instance.inputs, instance.region.inputs, strict=True))
