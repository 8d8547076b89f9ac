"""What goes into a pack, and what of a pack is for this machine.

A pack for a model has its programs and families, and the executables with the operations of their templates: those for
each length and each device that the store knows.
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
from fusioncache.store.packs import Pack, PackResult, UnpackResult, fits_all, unpack, write_pack
from fusioncache.store.signing import SigningKey, Trust
from fusioncache.template.text import digest_ops, write_graph

TEMPLATES = "templates"
"""The artifact of a program that says which operations the graphs have that were compiled for it."""

_SAYS = {
    "device": ("device", "architecture"),
    "driver": ("driver",),
    "version": ("versions", "program versions"),
}
"""The ingredients of keys that say what an entry is for."""

_OF_ALL = (SPLITS_SLOT, VERIFIED_SLOT)
"""What has no name of a model and no operations of one: it is small, and goes into every pack."""


def write_templates(graphs: Iterable[Graph]) -> bytes:
    """Returns the artifact of a program: a digest of each graph's operations, a line for each."""
    return "\n".join(sorted({digest_ops(write_graph(graph)["ops"]) for graph in graphs})).encode()


def save_pack(
    store: Store | None,
    path: Path,
    *,
    model: str = "",
    only: Mapping[str, str] = MappingProxyType({}),
    key: SigningKey | None = None,
) -> PackResult:
    """Writes what a store has into one file.

    Args:
        store: in a directory.
        path: of the file.
        model: the name of a model; empty for all of the store.
        only: a part of what an entry says of its ``device``, ``driver`` or ``version``; empty for all. What says
            nothing of it is for all.
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
    """Brings into a store what a pack has for this machine.

    Args:
        store: in a directory.
        pack: that was opened.
        trust: the keys whose entries are used.
        all_machines: whether to bring what is for others, too.
        dry_run: whether to bring nothing and say what would be brought.

    Raises:
        StoreError: if there is no store, it can only be read, or the pack is shorter than it was.
        OSError: if the pack cannot be read, or the store cannot be written.
    """
    disk = require_disk(store)
    if not disk.directory.writable:
        raise StoreError(f"{disk.directory.path} can only be read: give another directory, with --dir for a command")
    find_misfit = fits_all if all_machines else make_misfit_finder()
    return unpack(pack, disk, trust, find_misfit, dry_run=dry_run)


def require_disk(store: Store | None) -> DiskStore:
    """Returns the directory of a store.

    Raises:
        StoreError: if the store has no directory.
    """
    if store is None or store.disk is None:
        raise StoreError("there is no store: give the cache one, and leave FUSIONCACHE_STORE unset")
    return store.disk


def _is_for(entry: Entry, only: Mapping[str, str]) -> bool:
    """Returns whether an entry is for such a machine, or for any."""
    texts = entry.texts
    for name, wanted in only.items():
        said = [texts[ingredient] for ingredient in _SAYS[name] if ingredient in texts]
        if said and not any(wanted.lower() in text.lower() for text in said):
            return False
    return True


class Selection:
    """Finds the entries that a model needs.

    Args:
        disk: has them.
        entries: to select from.
    """

    def __init__(self, disk: DiskStore, entries: Iterable[Entry]):
        self._disk = disk
        self._entries = tuple(entries)
        self._operations = {entry.id: _digest_entry(entry) for entry in self._entries}

    def list_models(self) -> list[str]:
        """Returns the names that programs have."""
        return sorted({entry.name for entry in self._entries if is_program(entry.backend)})

    def select(self, model: str, *, exactly: bool = False) -> list[Entry]:
        """Returns the entries that a model needs.

        Args:
            model: its name.
            exactly: whether parts of the model, which have its name and more, are other models.

        Raises:
            StoreError: if there is no program of that name. The message says which names there are.
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
    """Returns the digest of the operations of what was compiled; empty if an entry has none."""
    ops = entry.texts.get("ops")
    return "" if ops is None else digest_ops(ops)


def is_named(name: str, model: str) -> bool:
    """Returns whether a program's name is that of a model, or of a part of it."""
    return name == model or (name.startswith(model) and not name[len(model)].isalnum())


def _read_templates(disk: DiskStore, entry: Entry) -> list[str]:
    for artifact in entry.artifacts:
        if artifact.name == TEMPLATES:
            with suppress(Refusal):
                return disk.content(artifact).decode(errors="replace").split("\n")
    return []


def make_misfit_finder() -> Callable[[Mapping[str, str]], str | None]:
    """Returns a function that says why what needs something of a machine is of no use on this one.

    It takes what one of a pack's environments says, and returns a phrase, or None if all of it is as it is here. What
    is here is read once for each backend that a pack needs: it imports the backend, and compiles nothing.
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
    """Returns what keys of a backend say of this machine, or why it cannot be used here; without one, of programs."""
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
