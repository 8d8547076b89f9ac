"""What goes into a pack, and what of a pack is for this machine.

A pack for a model has its programs and families, and the executables with the operations of their templates: those for
each length and each device that the store knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from fusioncache.backends.api import BACKENDS, make_backend, problem
from fusioncache.backends.versions import read_versions
from fusioncache.ir import Declined, Graph
from fusioncache.ir.keys import BACKEND, read_key, write_lines
from fusioncache.observe.explain.difference import compare
from fusioncache.store import Store, StoreError
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import PROGRAM_FORMAT, SPLITS_SLOT, VERIFIED_SLOT, Entry, is_family, is_program
from fusioncache.store.files import Refusal
from fusioncache.store.packs import Pack, PackResult, UnpackResult, open_pack, unpack, write_pack
from fusioncache.store.signing import SigningKey, read_own_key, read_trust
from fusioncache.template.text import digest_ops, write_graph

TEMPLATES = "templates"
"""The artifact of a program that says which operations the graphs have that were compiled for it."""

_OF_ALL = (SPLITS_SLOT, VERIFIED_SLOT)
"""What has no name of a model and no operations of one: it is small, and goes into every pack."""


def write_templates(graphs: Iterable[Graph]) -> bytes:
    """Returns the artifact of a program: a digest of each graph's operations, a line for each."""
    return "\n".join(sorted({digest_ops(write_graph(graph)["ops"]) for graph in graphs})).encode()


def read_key_to_sign() -> SigningKey | None:
    """Returns the key that signs for this user; None if there is none.

    Raises:
        StoreError: if there is something in its place.
    """
    try:
        return read_own_key()
    except Refusal as refusal:
        raise StoreError(str(refusal)) from None


def save_pack(
    store: Store | None,
    path: Path,
    *,
    model: str = "",
    device: str = "",
    key: SigningKey | None = None,
) -> PackResult:
    """Writes what a store has into one file.

    Args:
        store: in a directory.
        path: of the file.
        model: the name of a model; empty for all of the store.
        device: a part of what names a GPU or a processor; empty for all.
        key: signs the pack; None to leave it unsigned.

    Raises:
        StoreError: if there is no store, nothing to write, it cannot be signed here, or the file cannot be written.
        OSError: if the store cannot be read.
    """
    import fusioncache

    disk = require_disk(store)
    entries = [entry for entry in disk.list_entries() if _is_for(entry, device)]
    if model:
        entries = list(select_for_model(disk, entries, model))
    ids = [entry.id for entry in entries]
    return write_pack(disk, ids, path, model=model, version=fusioncache.__version__, key=key)


def load_pack(store: Store | None, path: Path, *, all_machines: bool = False, dry_run: bool = False) -> UnpackResult:
    """Brings into a store what a pack has for this machine.

    Args:
        store: in a directory.
        path: of the file.
        all_machines: whether to bring what is for others, too.
        dry_run: whether to bring nothing and say what would be brought.

    Raises:
        StoreError: if there is no store, or the file cannot be read, is no pack, or no key that is trusted signed it.
        OSError: if the store cannot be written.
    """
    try:
        trust = read_trust()
    except Refusal as refusal:
        raise StoreError(str(refusal)) from None
    pack = open_pack(path, trust)
    find_misfit = (lambda needs: None) if all_machines else make_misfit_finder(pack)
    return unpack(pack, require_disk(store), trust, find_misfit, dry_run=dry_run)


def require_disk(store: Store | None) -> DiskStore:
    """Returns the directory of a store.

    Raises:
        StoreError: if there is none.
    """
    if store is None or store.disk is None:
        raise StoreError("there is no store: give the cache one, and leave FUSIONCACHE_STORE unset")
    return store.disk


def _is_for(entry: Entry, device: str) -> bool:
    """Returns whether an entry is for a device, or for none."""
    texts = _read_texts(entry)
    said = [texts[name] for name in ("device", "architecture") if name in texts]
    return not device or not said or any(device.lower() in text.lower() for text in said)


def select_for_model(
    disk: DiskStore, entries: Iterable[Entry], model: str, *, exactly: bool = False
) -> Iterator[Entry]:
    """Yields the entries that a model needs.

    Args:
        disk: has them.
        entries: to select from.
        model: its name.
        exactly: whether parts of the model, which have its name and more, are other models.

    Raises:
        StoreError: if there is no program of that name. The message says which names there are.
    """
    entries, is_own = list(entries), (lambda name: name == model) if exactly else partial(is_named, model=model)
    programs = [entry for entry in entries if is_program(entry.backend)]
    own = [entry for entry in programs if is_own(entry.name)]
    if not own:
        names = ", ".join(sorted({entry.name for entry in programs})) or "none"
        raise StoreError(f"the store has no program of {model}; it has programs of: {names}")
    operations = {line for entry in own for line in _read_templates(disk, entry)}
    for entry in entries:
        if is_program(entry.backend) or is_family(entry.backend):
            is_wanted = is_own(entry.name)
        else:
            ops = _read_texts(entry).get("ops")
            is_wanted = entry.backend in _OF_ALL or (ops is not None and digest_ops(ops) in operations)
        if is_wanted:
            yield entry


def is_named(name: str, model: str) -> bool:
    """Returns whether a program's name is that of a model, or of a part of it."""
    return name == model or (name.startswith(model) and not name[len(model)].isalnum())


def _read_templates(disk: DiskStore, entry: Entry) -> list[str]:
    for artifact in entry.artifacts:
        if artifact.name == TEMPLATES:
            with suppress(Refusal):
                return disk.content(artifact).decode(errors="replace").split("\n")
    return []


def _read_texts(entry: Entry) -> Mapping[str, str]:
    with suppress(ValueError):
        return read_key(entry.text)
    return {}


def make_misfit_finder(pack: Pack) -> Callable[[Mapping[str, str]], str | None]:
    """Returns a function that says why what needs something of a machine is of no use on this one.

    It takes what one of the pack's environments says, and returns a phrase, or None if all of it is as it is here. What
    is here is read once for each backend that the pack needs: it imports the backend, and compiles nothing.
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
