"""What was compiled, kept on disk for later processes. Knows keys and bytes; no torch, no Thunder, no compiler."""

from fusioncache.store.directory import FORMAT, check, default_path
from fusioncache.store.entry import Artifact, Entry
from fusioncache.store.errors import RemoteError, StoreError
from fusioncache.store.evict import Swept
from fusioncache.store.flight import Turn
from fusioncache.store.journal import StoreStats
from fusioncache.store.store import Store
from fusioncache.store.stored import Stored
from fusioncache.store.summary import Event, Summary

__all__ = [
    "FORMAT",
    "Artifact",
    "Entry",
    "Event",
    "RemoteError",
    "Store",
    "StoreError",
    "StoreStats",
    "Stored",
    "Summary",
    "Swept",
    "Turn",
    "check",
    "default_path",
]
