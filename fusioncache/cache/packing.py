"""Selects the entries that go into a pack, and those of a pack that are for this machine.

A model's pack has its programs and families, and all executables with the operations of its templates, for each layout
and each device in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from fusioncache import __version__
from fusioncache.backends.api import BACKENDS, make_backend, problem
from fusioncache.backends.versions import read_versions
from fusioncache.ir import Declined, Graph
from fusioncache.ir.keys import BACKEND, write_lines
from fusioncache.observe.explain.difference import compare
from fusioncache.store import Store, StoreError
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import (
    PROGRAM_FORMAT,
    SPLITS_SLOT,
    VERIFIED_SLOT,
    Entry,
    is_compiled,
    is_family,
    is_program,
)
from fusioncache.store.files import Refusal
from fusioncache.store.packs import Pack, PackResult, UnpackResult, unpack, write_pack
from fusioncache.store.signing import SigningKey, Trust
from fusioncache.template.text import digest_ops, write_graph

TEMPLATES = "templates"
"""The artifact of a program with the operations of the graphs that were compiled for it."""

_SAYS = {
    "device": ("device", "architecture"),
    "driver": ("driver",),
    "version": ("versions", "program versions"),
}
"""The ingredients of keys that each filter of ``save_pack`` searches."""

_OF_ALL = (SPLITS_SLOT, VERIFIED_SLOT)
"""Entries without a model's name or operations. They are small, and go into every pack."""


def write_templates(graphs: Iterable[Graph]) -> bytes:
    """Returns the artifact of a program: a digest of each graph's operations, one a line."""
    return "\n".join(sorted({digest_ops(write_graph(graph)["ops"]) for graph in graphs})).encode()


def save_pack(
    store: Store | None,
    path: Path,
    *,
    model: str = "",
    only: Mapping[str, str] = MappingProxyType({}),
    key: SigningKey | None = None,
) -> PackResult:
    """Writes entries of a store into one file.

    Args:
        store: a store with a directory.
        path: of the file.
        model: the name of a model; empty for all of the store.
        only: substrings of an entry's ``device``, ``driver`` or ``version``, to select entries; empty for all. An
            entry without such an ingredient is always selected.
        key: signs the pack; None to leave it unsigned.

    Raises:
        StoreError: if there is no store, nothing to write, it cannot be signed here, or the file cannot be written.
        OSError: if the store cannot be read.
    """
    disk = require_disk(store)
    entries = [entry for entry in disk.list_entries() if _is_for(entry, only)]
    wanted = ", ".join(filter(None, only.values()))
    if wanted and not any(is_compiled(entry.backend) for entry in entries):
        raise StoreError(f"the store has nothing that was compiled for {wanted}: 'fusioncache ls' lists what it has")
    if model:
        entries = Selection(disk, entries).select(model)
    ids = [entry.id for entry in entries]
    return write_pack(disk, ids, path, model=model, version=__version__, key=key)


def load_pack(
    store: Store | None, pack: Pack, trust: Trust, *, all_machines: bool = False, dry_run: bool = False
) -> UnpackResult:
    """Copies the entries of a pack that are for this machine into a store.

    Args:
        store: a store with a directory.
        pack: an opened pack.
        trust: the keys whose entries are used.
        all_machines: whether to copy entries for other machines, too.
        dry_run: whether to only report what would be copied.

    Raises:
        StoreError: if there is no store, it is read-only, or the pack is shorter than when it was opened.
        OSError: if the pack cannot be read, or the store cannot be written.
    """
    disk = require_disk(store)
    if not disk.directory.writable:
        raise StoreError(f"{disk.directory.path} can only be read: give another directory, with --dir for a command")
    find_misfit = None if all_machines else make_misfit_finder()
    return unpack(pack, disk, trust, find_misfit, dry_run=dry_run)


def require_disk(store: Store | None) -> DiskStore:
    """Returns the directory store of a store.

    Raises:
        StoreError: if the store has no directory.
    """
    if store is None or store.disk is None:
        raise StoreError("there is no store: give the cache one, and leave FUSIONCACHE_STORE unset")
    return store.disk


def _is_for(entry: Entry, only: Mapping[str, str]) -> bool:
    """True if an entry is for such a machine, or for any."""
    texts = entry.texts
    for name, wanted in only.items():
        said = [texts[ingredient] for ingredient in _SAYS[name] if ingredient in texts]
        if said and not any(wanted.lower() in text.lower() for text in said):
            return False
    return True


class Selection:
    """Finds the entries that a model needs.

    Args:
        disk: has the entries.
        entries: to select from.
    """

    def __init__(self, disk: DiskStore, entries: Iterable[Entry]):
        self._disk = disk
        self._entries = tuple(entries)
        self._operations = {entry.id: _digest_entry(entry) for entry in self._entries}

    def list_models(self) -> list[str]:
        """Returns the names of the stored programs."""
        return sorted({entry.name for entry in self._entries if is_program(entry.backend)})

    def select(self, model: str, *, exactly: bool = False) -> list[Entry]:
        """Returns the entries that a model needs.

        Args:
            model: its name.
            exactly: whether parts of the model, whose names start with its name, are other models.

        Raises:
            StoreError: if there is no program of that name. The message lists the names.
        """
        names = {name for name in self.list_models() if name == model or (not exactly and is_named(name, model))}
        if not names:
            known = ", ".join(self.list_models()) or "none"
            raise StoreError(f"the store has no program of {model}; it has programs of: {known}")
        own = [entry for entry in self._entries if is_program(entry.backend) and entry.name in names]
        operations = {line for entry in own for line in _read_templates(self._disk, entry)}
        return [entry for entry in self._entries if self._is_needed(entry, names, operations)]

    def _is_needed(self, entry: Entry, names: Set[str], operations: Set[str]) -> bool:
        if is_program(entry.backend) or is_family(entry.backend):
            return entry.name in names
        return entry.backend in _OF_ALL or self._operations[entry.id] in operations


def _digest_entry(entry: Entry) -> str:
    """Returns the digest of a compiled entry's operations; empty for an entry without any."""
    ops = entry.texts.get("ops")
    return "" if ops is None else digest_ops(ops)


def is_named(name: str, model: str) -> bool:
    """True if a program's name is the model's, or that of a part of it."""
    return name == model or (name.startswith(model) and not name[len(model)].isalnum())


def _read_templates(disk: DiskStore, entry: Entry) -> list[str]:
    for artifact in entry.artifacts:
        if artifact.name == TEMPLATES:
            with suppress(Refusal):
                return disk.content(artifact).decode(errors="replace").split("\n")
    return []


def make_misfit_finder() -> Callable[[Mapping[str, str]], str | None]:
    """Returns a function that returns the reason why an entry cannot be used on this machine; None if it can be.

    The function takes one of a pack's environments. This machine's environment is read once for each backend that a
    pack needs: that imports the backend, and compiles nothing.
    """
    here: dict[str, Mapping[str, str] | str] = {}

    def find_misfit(needs: Mapping[str, str]) -> str | None:
        backend = needs.get(BACKEND, "")
        if backend not in here:
            here[backend] = read_machine(backend)
        found = here[backend]
        if isinstance(found, str):
            where = needs.get("device") or needs.get("architecture")
            return f"{found} (it was made on {where})" if where else found
        changes = compare(needs, {name: found[name] for name in needs if name in found}).changes
        return f"{changes[0].subject} is {changes[0].b} here, and {changes[0].a} in the pack" if changes else None

    return find_misfit


def read_machine(backend: str) -> Mapping[str, str] | str:
    """Returns this machine's environment for a backend, or why it is unusable; for programs if ``backend`` is empty."""
    try:
        if not backend:
            return {"program format": str(PROGRAM_FORMAT), "program versions": "\n".join(write_lines(read_versions()))}
        if backend not in BACKENDS:
            return f"there is no backend {backend} here"
        problems = [problem(backend, device) for device in ("cuda", "cpu")]
        if all(problems):
            return str(problems[0])
        made = make_backend(backend)
        return {**made.environment(), **(made.artifact_environment() or {})}
    except (ValueError, Declined) as error:
        return str(error)
