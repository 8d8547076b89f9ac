"""Compiles what one entry asks for, for this device and these versions, if that is not there yet."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fusioncache.backends.registry import make_backend
from fusioncache.backends.torch_settings import apply_torch_settings
from fusioncache.cache.persistence import PersistentBuilder, not_kept
from fusioncache.cache.ranks import Ranks
from fusioncache.ir import Bypass, Instance
from fusioncache.ir.request import Request
from fusioncache.precompile.arguments import available_device_types, device_types_of, make_arguments, release_memory
from fusioncache.precompile.requests import Refused, StoredRequest, read_request
from fusioncache.store import Store
from fusioncache.store.entry import REFUSED

logger = logging.getLogger("fusioncache")

FAILED, NOT_STORED = "failed", "not stored"

Result = Literal["compiled", "ready", "refused"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of compiling what an entry asks for.

    Attributes:
        result: whether it was compiled, was ready before, or was refused.
        reason: why it was refused.
        passing: whether another time it may not be, with nothing changed.
    """

    result: Result
    reason: str = ""
    passing: bool = False


class EntryCompiler:
    """Compiles what entries of one store ask for.

    Args:
        store: the store, which the compiled programs go into as well.
        dry_run: whether to compile nothing, and say what would be compiled.
    """

    def __init__(self, store: Store, *, dry_run: bool = False):
        self._store = store
        self._dry_run = dry_run
        self._builders: dict[tuple[str, str, str], tuple[PersistentBuilder, list[str]]] = {}

    def compile(self, id_: str) -> Outcome:
        """Compiles what this entry asks for. What goes wrong is its outcome: nothing is raised."""
        try:
            return self._compile(read_request(self._store, id_))
        except Refused as refusal:
            return Outcome("refused", str(refusal), refusal.passing)
        except Exception as error:  # whatever it is, the other entries can be compiled
            logger.info("%s is not compiled ahead", id_[:12], exc_info=error)
            return Outcome("refused", f"{FAILED}: {type(error).__name__}")
        finally:
            release_memory()

    def _compile(self, stored: StoredRequest) -> Outcome:
        asked, instance = stored.request, stored.instance
        missing = device_types_of(asked.graph) - available_device_types()
        if missing:
            raise Refused(f"other device type: {', '.join(sorted(missing))}")
        with apply_torch_settings(asked.settings):
            return self._build(asked, instance)

    def _build(self, asked: Request, instance: Instance) -> Outcome:
        builder, reasons = self._builder_for(asked)
        key = builder.key(asked.graph, asked.layouts, instance)
        found = self._store.load(key, asked.backend)
        if found is not None:
            return _outcome_of(found)
        if self._dry_run:
            return Outcome("compiled")
        reasons.clear()
        built = builder.build(asked.graph, instance, asked.layouts, make_arguments(asked.graph, asked.layouts))
        stored = self._store.entry(key.digest, asked.backend) is not None
        if reasons:
            raise Refused(reasons[-1], passing=not stored)  # what is so for good leaves a note
        if not stored:
            raise Refused(NOT_STORED)
        return Outcome("ready" if built.loaded else "compiled")

    def _builder_for(self, asked: Request) -> tuple[PersistentBuilder, list[str]]:
        """Returns what builds with the backend of a request, made once, and its reasons not to persist.

        Raises:
            Refused: if there is no such backend here, or it keeps nothing.
        """
        identity = (asked.backend, repr(sorted(asked.options.items())), repr(sorted(asked.settings.items())))
        if identity not in self._builders:
            try:
                backend = make_backend(asked.backend, **asked.options)
            except (ValueError, TypeError) as error:
                logger.info("no backend %s", asked.backend, exc_info=error)
                raise Refused(f"no backend {asked.backend} here") from error
            if backend.artifact_environment() is None:
                raise Refused(f"backend {asked.backend} keeps nothing")
            reasons: list[str] = []
            try:
                environment = backend.environment()
            except Bypass as bypass:
                raise Refused(bypass.reason) from bypass
            builder = PersistentBuilder(backend, self._store, Ranks(), environment, reasons.append, asked.settings)
            self._builders[identity] = builder, reasons
        return self._builders[identity]


def _outcome_of(artifacts: Mapping[str, bytes]) -> Outcome:
    """Returns what an entry for this very environment comes to."""
    reason = artifacts.get(REFUSED)
    return Outcome("ready") if reason is None else Outcome("refused", not_kept(reason.decode(errors="replace")))
