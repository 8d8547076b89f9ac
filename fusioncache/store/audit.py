"""Reads every byte of a store and says what is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fusioncache.process.places import ASIDE
from fusioncache.store.entry import OTHER_FORMAT
from fusioncache.store.errors import Refusal, name_cause
from fusioncache.store.folders import EntryFolder, ObjectFolder
from fusioncache.store.locks import hold_alone

_GONE = "an entry without its artifacts"


@dataclass(frozen=True, slots=True)
class Damage:
    """One file that is not what was saved.

    Attributes:
        what: an ``entry`` or an ``object``.
        id: its name.
        reason: what is wrong with it.
    """

    what: Literal["entry", "object"]
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Attributes:
        entries: how many there are.
        objects: how many there are.
        bytes: of both.
        other: entries of another version, which only that can judge.
        damaged: those that are.
        aside: what was in the place of files and is none of the store's, below it. It may be a user's, and stays.
    """

    entries: int
    objects: int
    bytes: int
    other: int
    damaged: tuple[Damage, ...]
    aside: tuple[str, ...]


def audit(root: Path) -> Audit:
    """Reads everything. Others may go on meanwhile; what they remove is not missed.

    Args:
        root: of the store.

    Raises:
        OSError: if its folders cannot be read.
    """
    entries, objects = EntryFolder(root / "entries"), ObjectFolder(root / "objects")
    sizes, found = objects.sizes(), entries.list_files()
    damaged = [*_find_damaged_objects(objects, sizes), *_find_damaged_entries(entries, objects, found)]
    size = sum(sizes.values()) + sum(file.size for file in found.values())
    real = tuple(damage for damage in damaged if damage.reason != OTHER_FORMAT)
    return Audit(len(found), len(sizes), size, len(damaged) - len(real), real, find_aside(root))


def find_aside(root: Path) -> tuple[str, ...]:
    """Returns what was in the place of files and was set aside, as paths below the root of a store."""
    found = (path for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}{ASIDE}*"))
    return tuple(sorted(str(path.relative_to(root)) for path in found))


def remove_damaged(root: Path, damaged: Iterable[Damage]) -> int:
    """Removes what is still damaged of this. Returns how many files went.

    Raises:
        Refusal: if others save all the time.
        OSError: if there are no locks.
    """
    entries, objects = EntryFolder(root / "entries"), ObjectFolder(root / "objects")
    removed = 0
    # A process that saves now would put a whole file in place of a damaged one, which must stay.
    with hold_alone(root / "locks" / "store"):
        sizes = objects.sizes()
        # Entries first: what is wrong with one may be its object.
        for damage in sorted(damaged, key=lambda damage: damage.what):
            if damage.what == "entry":
                removed += any(_find_damaged_entries(entries, objects, [damage.id])) and entries.remove(damage.id)
            elif damage.id in sizes:
                removed += any(_find_damaged_objects(objects, {damage.id: sizes[damage.id]})) and objects.remove(
                    damage.id
                )
    return removed


def _find_damaged_objects(objects: ObjectFolder, sizes: dict[str, int]) -> Iterator[Damage]:
    for digest, size in sizes.items():
        try:
            objects.get(digest, size)
        except Refusal as refusal:
            yield Damage("object", digest, refusal.reason)
        except OSError as error:
            yield Damage("object", digest, f"cannot be read: {name_cause(error)}")


def _find_damaged_entries(entries: EntryFolder, objects: ObjectFolder, ids: Iterable[str]) -> Iterator[Damage]:
    for id_ in ids:
        try:
            entry = entries.get(id_)
            for artifact in entry.artifacts if entry else ():
                # None also where both went since they were listed, and then there is no entry any more.
                if objects.get(artifact.object, artifact.size) is None and entries.exists(id_):
                    raise Refusal(_GONE)
        except Refusal as refusal:
            yield Damage("entry", id_, refusal.reason)
        except OSError as error:
            yield Damage("entry", id_, f"cannot be read: {name_cause(error)}")
