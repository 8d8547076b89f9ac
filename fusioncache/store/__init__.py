"""Executables on disk for later processes. Handles keys and bytes; imports no torch, Thunder or compiler."""

# ruff: noqa: F401
from fusioncache.store.directory import check, default_path
from fusioncache.store.disk import SweepResult
from fusioncache.store.entry import Entry, StoredArtifacts
from fusioncache.store.files import StoreError
from fusioncache.store.store import Store
