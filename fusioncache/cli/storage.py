"""The store as the commands see it: there and usable, or a message that says why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.terminal import say
from fusioncache.humanize import escape_controls, format_bytes, format_count

if TYPE_CHECKING:
    from fusioncache.store import Entry, Store, SweepResult
    from fusioncache.store.directory import Directory
    from fusioncache.store.disk import DiskStore


@contextmanager
def report_store_errors() -> Iterator[None]:
    """Ends the command with 1 and the message if anything goes wrong in a store."""
    from fusioncache.store import StoreError
    from fusioncache.store.files import Refusal

    try:
        yield
    except StoreError as error:
        raise click.ClickException(str(error)) from None
    except (Refusal, OSError) as error:
        raise click.ClickException(f"the store cannot be used: {error}") from error


def is_expected(directory: Path | None) -> bool:
    """Returns whether there should be a store: one was named, or there is one in the usual place."""
    from fusioncache.store import default_path

    return directory is not None or default_path().exists()


def open_existing(directory: Path | None) -> Directory:
    """Opens the directory of a store that is there.

    Raises:
        StoreError: if there is none, or it cannot be used.
    """
    from fusioncache.store import StoreError, default_path
    from fusioncache.store.directory import open_directory

    path = directory or default_path()
    if not path.exists():
        raise StoreError(
            f"there is no store in {path}: run a model with fusioncache first (the "
            "eager backend stores nothing), or copy a store with 'fusioncache pull URL'"
        )
    if path.is_dir() and not any(path.iterdir()):
        # Opening it would make it one.
        raise StoreError(f"{path} is empty, and no store: run a model with fusioncache first, or check the path")
    return open_directory(path)


def open_disk(directory: Path | None) -> DiskStore:
    """Opens the files of a store that is there, and nothing else of it.

    Raises:
        StoreError: if there is none, or it cannot be used.
    """
    from fusioncache.store.disk import DiskStore
    from fusioncache.store.store import MAX_AGE, MAX_BYTES

    return DiskStore(open_existing(directory), MAX_BYTES, MAX_AGE)


def read_entries(disk: DiskStore, ids: Iterable[str]) -> Iterator[Entry]:
    """Yields the entries with these ids, as far as they can be read: 'fusioncache verify' lists those that cannot."""
    from fusioncache.store.files import Refusal

    for id_ in sorted(ids):
        with suppress(Refusal):
            entry = disk.entries.get(id_)
            if entry:
                yield entry


def open_store(directory: Path | None, *, make: bool) -> Store:
    """Opens the store in a directory.

    Raises:
        StoreError: if there is none and none is to be made, or it cannot be used.
    """
    from fusioncache.store import Store, default_path
    from fusioncache.store.directory import open_directory

    # Both raise where Store.open would go on in memory.
    found = open_directory(directory or default_path()) if make else open_existing(directory)
    return Store.open(found.path, remote="")


def list_store(directory: Path | None) -> tuple[Path, tuple[Entry, ...], Mapping[str, str]]:
    """Returns where the store is, what was compiled, newest first, and why it is not kept, by digest and backend.

    What Thunder made of models is left out: see ``programs.py``.
    """
    from fusioncache.store.entry import is_compiled

    with report_store_errors():
        store = open_store(directory, make=False)
        path, executables = store.directory, store.entries()
        refused = read_refusals(store, executables)
    if path is None:
        raise click.ClickException("the store went away while it was opened: try again")
    return path, tuple(executable for executable in executables if is_compiled(executable.backend)), refused


def read_refusals(store: Store, entries: Iterable[Entry]) -> Mapping[str, str]:
    """Returns why an executable was not kept, by digest and backend, for each that the store has only a note of."""
    from fusioncache.store.entry import REFUSED
    from fusioncache.store.files import Refusal

    reasons = {}
    for entry in entries:
        for artifact in entry.artifacts:
            if artifact.name == REFUSED and store.disk is not None:
                with suppress(Refusal, OSError):
                    reasons[entry.id] = store.disk.content(artifact).decode(errors="replace")
    return reasons


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """What a store has in its directory.

    Attributes:
        path: the directory.
        executables: how many there are that a backend compiled.
        programs: how many programs there are, which Thunder made of models.
        size: of all files, in bytes.
    """

    path: Path
    executables: int
    programs: int
    size: int


def measure_store() -> StoreUsage | None:
    """Returns what is in the store that is used by default; None if there is none that can be read."""
    from fusioncache.store import StoreError
    from fusioncache.store.directory import EntryFolder, ObjectFolder
    from fusioncache.store.entry import is_compiled, is_program

    try:
        path = open_existing(None).path
        entries, objects = EntryFolder(path / "entries").list_files(), ObjectFolder(path / "objects").sizes()
    except (StoreError, OSError):
        return None
    words = [id_.partition(".")[2] for id_ in entries]
    size = sum(file.size for file in entries.values()) + sum(objects.values())
    return StoreUsage(path, sum(map(is_compiled, words)), sum(map(is_program, words)), size)


def encode_removal(swept: SweepResult) -> dict[str, int]:
    """Returns what was removed, as JSON."""
    return {field.name: getattr(swept, field.name) for field in fields(swept)}


def format_removal(swept: SweepResult, dry_run: bool) -> str:
    """Returns what was removed, or would be."""
    counts = f"{format_count(swept.entries, 'entry', 'entries')} and {format_count(swept.objects, 'object', 'objects')}"
    if dry_run:
        return f"would remove {counts}; {format_bytes(swept.bytes_left)} would be left"
    return f"removed {counts}; {format_bytes(swept.bytes_left)} left"


def report_aside(path: Path, aside: Iterable[str]) -> None:
    """Says what was in the place of files of a store, and was set aside."""
    for name in aside:
        say(f"not of the store, and left to you: {escape_controls(str(path / name))}")
