"""Functions that outlive the process: loaded from the store if they are there, or else compiled once for all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusioncache.backends.api import Backend, Compiled, OnStart, ignore_start
from fusioncache.cache import rejections
from fusioncache.cache.executable import Builder, BuiltFunction
from fusioncache.cache.helpers import Ask, Helpers, Wait
from fusioncache.cache.ranks import Ranks
from fusioncache.cache.rejections import RejectedRegion
from fusioncache.ir import Declined, Graph, Instance, Key, Scope
from fusioncache.ir.permutation import pick
from fusioncache.ir.request import ArgumentLayouts, Option, Request, decode_region, encode_region, encode_request
from fusioncache.store import Store, StoredArtifacts
from fusioncache.store.entry import REFUSED
from fusioncache.store.locks import TOO_LONG
from fusioncache.store.store import COMPILE_SECONDS
from fusioncache.template.key import artifact_key
from fusioncache.template.name import template_name

logger = logging.getLogger("fusioncache")

REGION = "region"
"""The artifact that says what was compiled, and how it lies in the graph."""
REQUEST = "request"
"""The artifact that says what was asked for, so that it can be asked again. It is the same whatever the versions."""

_STALE = "an artifact that does not load"


class PersistentBuilder(Builder):
    """Builds functions with a backend and a store: each is loaded, or else compiled once for all processes.

    Args:
        backend: compiles, and loads what it compiled.
        store: where artifacts are.
        ranks: the other processes of the job.
        environment: of the backend, when the build was asked for. Those of its artifacts are added to it.
        refused: is told why a function could not be persisted.
        settings: of this process that another one has to make to ask for the same.
        helpers: returns those who compile for this process, if there are any at the moment.
        on_start: is told of the compiler's start, if it starts for this.
        patience: how many seconds to wait for another process of this machine that compiles the same. With 0 it is not
            compiled here while another one is at it: ``build`` raises ``Declined``.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store,
        ranks: Ranks,
        environment: Mapping[str, str],
        refused: Callable[[str], None],
        settings: Mapping[str, Option],
        *,
        helpers: Callable[[], Helpers | None] = lambda: None,
        on_start: OnStart = ignore_start,
        patience: float = COMPILE_SECONDS,
    ):
        super().__init__(backend, on_start)
        self._store = store
        self._ranks = ranks
        self._environment = environment
        self._refused = refused
        self._settings = settings
        self._helpers = helpers
        self._patience = patience

    def key(self, graph: Graph, layouts: ArgumentLayouts, instance: Instance) -> Key:
        """Returns the artifact key of what is stored."""
        environment = {**self._environment, **(self.backend.artifact_environment() or {})}
        return artifact_key(graph, environment, layouts, instance)

    def foresee(self, graph: Graph, instance: Instance, layouts: ArgumentLayouts) -> Ask | None:
        """See ``Builder``."""
        if self.backend.why_unkept(graph) is not None:
            return None
        return Ask(self.key(graph, layouts, instance), self._request(graph, layouts), instance)

    def load(
        self, graph: Graph, instance: Instance, layouts: ArgumentLayouts, args: Sequence[Any]
    ) -> BuiltFunction | None:
        """See ``Builder``."""
        if self.backend.why_unkept(graph) is not None:
            return None
        key = self.key(graph, layouts, instance)
        stored = self._store.load(key, self.backend.name)
        return None if stored is None or REFUSED in stored else self._load(stored, key, instance, args)

    def build(self, graph: Graph, instance: Instance, layouts: ArgumentLayouts, args: Sequence[Any]) -> BuiltFunction:
        """See ``Builder``. The function is for arguments of these very layouts if it was loaded."""
        key, name = self.key(graph, layouts, instance), self.backend.name
        helpers = self._helpers()
        wait = Wait() if helpers is None else self._wait_for(helpers, key)
        function = self._load(self._store.load(key, name), key, instance, args)
        if function is None and helpers is not None and helpers.note_missing():
            wait = self._wait_for(helpers, key)
            function = self._load(self._store.load(key, name), key, instance, args)
        if function is None:
            with self._ranks.turn(key, name) as turn:
                function = self._load(turn.artifacts, key, instance, args)
                if function is None:
                    request_ = self._request(graph, layouts)
                    function, artifacts = self._compile_once(key, request_, instance, args)
                    turn.publish(artifacts)
        waited = wait.on_others + wait.on_start
        if not function.loaded:
            return replace(function, shifted=function.shifted - waited)
        return replace(function, helped=wait.beside, made_here=bool(wait.here), shifted=wait.here - waited)

    def _wait_for(self, helpers: Helpers, key: Key) -> Wait:
        wait = helpers.wait_for(key)
        if wait.on_start:
            self._on_start(self.backend.title, wait.on_start)
        return wait

    def _request(self, graph: Graph, layouts: ArgumentLayouts) -> Request:
        return Request(graph, layouts, self.backend.name, self.backend.options(), self._settings)

    def _load(
        self, artifacts: StoredArtifacts | None, key: Key, instance: Instance, args: Sequence[Any]
    ) -> BuiltFunction | None:
        """Loads what is stored, if anything is. What does not load is removed.

        Raises:
            RejectedRegion: if it is stored that the compiler rejects the region.
        """
        if artifacts is None:
            return None
        try:
            rejection = rejections.read(artifacts, instance.region)
        except ValueError as error:
            self._discard(key, error)
            return None
        if rejection is not None:
            raise rejection
        if REFUSED in artifacts:
            self._refused(not_kept(artifacts[REFUSED].decode(errors="replace")))
            return self.compile(instance, args, key)
        try:
            stored = decode_region(artifacts[REGION])
            _check(stored, instance)
            run = self.backend.load(artifacts, stored.region, pick(args, stored.inputs))
        except Exception as error:  # whatever it is, the region can be compiled
            self._discard(key, error)
            return None
        return BuiltFunction(run, stored, key, loaded=True, compile_seconds=artifacts.seconds)

    def _discard(self, key: Key, error: Exception) -> None:
        logger.info("a stored executable for %s does not load", key.digest[:12], exc_info=error)
        self._store.discard(key, self.backend.name, f"{_STALE}: {type(error).__name__}")

    def _compile_once(
        self, key: Key, request_: Request, instance: Instance, args: Sequence[Any]
    ) -> tuple[BuiltFunction, StoredArtifacts | None]:
        """Compiles while the other processes of this machine wait, and stores the artifacts.

        Raises:
            Declined: if another process is at it, and there is no patience.
        """
        with self._store.take_turn(key, self.backend.name, self._patience) as turn:
            function = self._load(turn.artifacts, key, instance, args)
            if function:
                return function, turn.artifacts
            if turn.alone == TOO_LONG and not self._patience:
                raise Declined("another process compiles it", Scope.TURN)
            joined = self.backend.is_joined(instance.region, pick(args, instance.inputs))
            started = self.start(instance, joined=joined)
            start = time.perf_counter()
            compiled = self._persist(key, request_, instance, args)
            alone = compiled.alone_seconds
            seconds = time.perf_counter() - start if alone is None else alone
            how: dict[str, Any] = {"compile_seconds": alone or 0.0, "exact": compiled.exact, "shifted": -started}
            function = BuiltFunction(compiled.run, instance, key, **how)
            own = self._artifacts(compiled)
            if own is None or not self._is_still_for(key, request_, instance):
                return function, None
            artifacts = {**own, REGION: encode_region(instance), REQUEST: encode_request(request_)}
            name = template_name(request_.graph, key)
            self._store.save(key, self.backend.name, artifacts, name=name, seconds=seconds)
            if self._store.directory is None:
                self._refused(not_kept("the store's directory cannot be used"))
            return function, StoredArtifacts(artifacts, seconds)

    def _persist(self, key: Key, request_: Request, instance: Instance, args: Sequence[Any]) -> Compiled:
        """Compiles, and stores it if the compiler rejects the region.

        Raises:
            RejectedRegion: then.
            Exception: whatever else goes wrong.
        """
        try:
            return self.backend.persist(instance.region, pick(args, instance.inputs))
        except Exception as error:
            reason = self.backend.find_rejection(error)
            if reason is None:
                raise
            rejection = RejectedRegion(reason)
            self._save_rejection(key, request_, instance, rejection)
            raise rejection from error

    def reject(self, graph: Graph, instance: Instance, layouts: ArgumentLayouts, rejection: RejectedRegion) -> None:
        """See ``Builder``."""
        if self.backend.why_unkept(graph) is None:
            key = self.key(graph, layouts, instance)
            self._store.remove(key, self.backend.name)  # what was compiled, or a rejection without its pieces
            self._save_rejection(key, self._request(graph, layouts), instance, rejection)

    def _save_rejection(self, key: Key, request_: Request, instance: Instance, rejection: RejectedRegion) -> None:
        if not self._is_still_for(key, request_, instance):
            return
        artifacts = {**rejections.write(rejection), REGION: encode_region(instance), REQUEST: encode_request(request_)}
        self._store.save(key, self.backend.name, artifacts, name=template_name(request_.graph, key), seconds=0.0)

    def _artifacts(self, compiled: Compiled) -> Mapping[str, bytes] | None:
        """Returns the artifacts, or else a note that there never will be any; None if another time there may be."""
        if compiled.artifacts is not None:
            return compiled.artifacts
        reason = compiled.reason or "for no given reason"
        logger.info("cannot be stored: %s", reason)
        self._refused(not_kept(reason))
        return {REFUSED: reason.encode()} if compiled.lasting else None

    def _is_still_for(self, key: Key, request_: Request, instance: Instance) -> bool:
        """Tells whether what was just compiled is for this key: settings of a process may change while it compiles."""
        now = self.key(request_.graph, request_.layouts, instance)
        if self.backend.environment() == self._environment and now == key:
            return True
        self._refused(not_kept("settings changed while it was compiled"))
        return False


def not_kept(reason: str) -> str:
    """Returns the reason for which it is counted, at each start, that a function is compiled again."""
    return f"cannot be stored: {reason}"


def _check(stored: Instance, instance: Instance) -> None:
    """Checks that the stored region can take the place of this one.

    Raises:
        ValueError: if it has other inputs or outputs.
    """
    if _types(stored) != _types(instance) or len(stored.outputs) != len(instance.outputs):
        raise ValueError("a stored region with other inputs or outputs")


def _types(instance: Instance) -> dict[int, Any]:
    return dict(zip(instance.inputs, instance.region.inputs, strict=True))
