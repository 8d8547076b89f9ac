"""Remembers that all of a store is ready for these surroundings, so that nobody starts a compiler to find that out.

Only for processes that change no settings of compilers in their code, as those of the command line are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from fusioncache.precompile.surroundings import surroundings
from fusioncache.precompile.warm import Warmed
from fusioncache.store import Store
from fusioncache.store.errors import Refusal
from fusioncache.store.files import publish, read_private

_FILE = "warmed"
_LARGEST = 1 << 16


def remembered(store: Store) -> Warmed | None:
    """What compiling ahead would come to if it were done again; None if that takes looking. Never raises."""
    if store.directory is None:
        return None
    with suppress(Refusal, OSError, ValueError, TypeError, KeyError, AttributeError):
        said = json.loads(read_private(store.directory / _FILE, _LARGEST) or b"{}")
        if said and said["state"] == _state(store):
            return _warmed(said)
    return None


def remember(store: Store, warmed: Warmed) -> None:
    """Takes down what came of compiling ahead, unless the next time may come to something else. Never raises: where it
    cannot be written, the next one looks again."""
    if store.directory is None or warmed.failed or warmed.passing:
        return
    with suppress(OSError):
        ready = warmed.ready + warmed.compiled
        known = len(store.entries())
        said = {"state": _state(store), "known": known, "ready": ready, "refused": dict(warmed.refused)}
        publish(store.directory / _FILE, json.dumps(said).encode())


def _warmed(said: Mapping[str, Any]) -> Warmed:
    refused = {str(reason): int(number) for reason, number in said["refused"].items()}
    return Warmed(int(said["known"]), int(said["ready"]), 0, MappingProxyType(refused), 0, 0.0)


def _state(store: Store) -> str:
    """The digest of what a store has and what it is used in."""
    if store.disk is None:
        raise ValueError("a store in memory")
    entries = sorted((id_, file.inode, file.size) for id_, file in store.disk.entries.found().items())
    text = json.dumps([entries, sorted(store.disk.sizes().items()), surroundings()])
    return hashlib.sha256(text.encode()).hexdigest()
