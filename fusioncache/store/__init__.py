"""What was compiled, kept on disk for later processes. Knows keys and bytes; no torch, no Thunder, no compiler."""

from fusioncache.store.directory import FORMAT, check, default_path
from fusioncache.store.entry import Artifact, Entry, StoredArtifacts, Summary
from fusioncache.store.errors import StoreError
from fusioncache.store.evict import SweepResult
from fusioncache.store.flight import Turn
from fusioncache.store.index import Event
from fusioncache.store.journal import StoreStats
from fusioncache.store.store import Store

__all__ = [
    "FORMAT",
    "Artifact",
    "Entry",
    "Event",
    "Store",
    "StoreError",
    "StoreStats",
    "StoredArtifacts",
    "Summary",
    "SweepResult",
    "Turn",
    "check",
    "default_path",
]
