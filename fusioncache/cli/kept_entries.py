"""Entries of a store that no backend compiled, as the commands see them: read without Thunder and torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.storage import open_disk, read_entries, report_store_errors
from fusioncache.cli.terminal import ID_DIGITS

if TYPE_CHECKING:
    from fusioncache.store import Entry
    from fusioncache.store.directory import EntryFile
    from fusioncache.store.disk import DiskStore


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """Something that a store has of a model.

    Attributes:
        entry: of the store.
        file: of the entry.
        alone: whether no other one of its kind has its key.
        disk: where its artifacts are.
    """

    entry: Entry
    file: EntryFile
    alone: bool
    disk: DiskStore

    @property
    def id(self) -> str:
        """What people call it: the start of its key's digest, and its slot's number where the key has several."""
        return f"{self.entry.digest[:ID_DIGITS]}{'' if self.alone else f'-{self.number}'}"

    @property
    def number(self) -> int:
        """Of its slot."""
        return int(self.entry.backend.partition("-")[2] or 0)

    @property
    def name(self) -> str:
        """Class of the module, or name of the function."""
        return self.entry.name

    @property
    def seconds(self) -> float:
        """That deriving it took."""
        return self.entry.seconds

    @property
    def size(self) -> int:
        """Of its artifacts and of its entry, which has the whole text of the key, in bytes."""
        return self.file.size + sum(artifact.size for artifact in self.entry.artifacts)

    @property
    def used(self) -> float:
        """When it was last used, in seconds since the epoch."""
        return self.file.used / 1e9

    def is_called(self, wanted: str) -> bool:
        """Tells whether this is the start of its digest, with the number of its slot or without."""
        head, _, number = wanted.partition("-")
        return self.entry.digest.startswith(head) and number in ("", str(self.number))

    def origin(self) -> dict[str, Any]:
        """Returns what the commands' JSON says of each. ``created`` and ``used`` are in seconds since the epoch."""
        entry = self.entry
        about = {"id": self.id, "digest": entry.digest, "slot": entry.backend, "name": entry.name}
        when = {"created": entry.created, "used": self.used, "seconds": entry.seconds}
        return {**about, **when, "pid": entry.pid, "host": entry.host, "size": self.size}

    def decode(self, name: str, decode: Callable[[bytes], Any]) -> Any:
        """Returns what one of its artifacts is.

        Raises:
            click.ClickException: if that is damaged, or of another version.
        """
        from fusioncache.store.files import Refusal

        try:
            (artifact,) = [artifact for artifact in self.entry.artifacts if artifact.name == name]
            return decode(self.disk.content(artifact))
        except (Refusal, ValueError, OSError) as error:
            raise click.ClickException(
                f"the {name} of {self.id} cannot be read: {error}. 'fusioncache verify --remove' removes damaged "
                "entries, and the next process makes them again"
            ) from error


def list_entries[T: KeptEntry](
    directory: Path | None, make: Callable[..., T], is_wanted: Callable[[str], bool]
) -> tuple[Path, tuple[T, ...]]:
    """Returns where the store is, and the entries of one kind in it, newest first.

    Args:
        directory: of the store; None for the usual one.
        make: makes one, of what ``KeptEntry`` is made of.
        is_wanted: tells by its slot whether an entry is of the kind.

    Raises:
        click.ClickException: if there is no store, or it cannot be used.
    """
    with report_store_errors():
        disk = open_disk(directory)
        files = disk.entries.list_files()
        found = list(read_entries(disk, _list_wanted(files, is_wanted)))
    digests = Counter(entry.digest for entry in found)
    kept = (make(entry, files[entry.id], digests[entry.digest] == 1, disk) for entry in found)
    return disk.directory.path, tuple(sorted(kept, key=lambda one: (-one.entry.created, one.entry.id)))


def _list_wanted(ids: Any, is_wanted: Callable[[str], bool]) -> Iterator[str]:
    return (id_ for id_ in ids if is_wanted(id_.partition(".")[2]))
