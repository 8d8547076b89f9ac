"""What was compiled, kept on disk for later processes. Knows keys and bytes; no torch, no Thunder, no compiler."""

from fusioncache.store.directory import FORMAT, check, default_path
from fusioncache.store.disk import SweepResult
from fusioncache.store.entry import Artifact, Entry, StoredArtifacts
from fusioncache.store.files import StoreError
from fusioncache.store.store import Store, Turn

__all__ = [
    "FORMAT",
    "Artifact",
    "Entry",
    "Store",
    "StoreError",
    "StoredArtifacts",
    "SweepResult",
    "Turn",
    "check",
    "default_path",
]
