"""The families of a store, as the commands see them: programs that are known at any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.kept_entries import KeptEntry, list_entries

if TYPE_CHECKING:
    from fusioncache.accelerators.programs.reads import Read

type ProgramSizes = Mapping[int | str, tuple[int, ...]]
"""The sizes of a program's arguments, by their places: a position, or a name."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a family without its programs.

    Attributes:
        programs: the sizes of each program that it is made of.
        guards: what has to come out the same at a further length, a line of text for each.
    """

    programs: tuple[ProgramSizes, ...]
    guards: tuple[str, ...]

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Of each program the sizes in which it differs from another, each once."""
        listed = [tuple(size for sizes in each.values() for size in sizes) for each in self.programs]
        varying = [column for column in dict.fromkeys(zip(*listed, strict=True)) if len(set(column)) > 1]
        return tuple(zip(*varying, strict=True))


@dataclass(frozen=True, slots=True)
class KeptFamily(KeptEntry):
    """A family that a store has: what programs of one form, which differ in lengths alone, have in common."""

    def read_outline(self) -> Outline:
        """Reads what is known of it without its programs.

        Raises:
            click.ClickException: if that is damaged, or of another version.
        """
        from fusioncache.accelerators.programs.kept_passes import decode_outline

        passes, programs = self.decode("family", decode_outline)
        unequal = (f"not equal: {_join(one)} and {_join(other)}" for one, other in passes.unequal)
        decided = (f"{each.function} decides {each.answer}" for each in passes.decisions)
        return Outline(programs, (*map(str, passes.looks), *dict.fromkeys((*unequal, *decided))))

    def find_outline(self) -> Outline | None:
        """Returns the same; None if it cannot be read."""
        try:
            return self.read_outline()
        except click.ClickException:
            return None

    def read_reads(self) -> Sequence[Read]:
        """Reads what the programs were derived from beside their key.

        Raises:
            click.ClickException: if that is damaged, or of another version.
        """
        from fusioncache.accelerators.programs.reads import decode_reads

        return self.decode("reads", decode_reads)  # type: ignore[no-any-return]

    def data(self) -> dict[str, Any]:
        """Returns what the commands' JSON says of it."""
        outline = self.find_outline()
        return {**self.origin(), "lengths": outline and outline.lengths}


def list_families(directory: Path | None) -> tuple[Path, tuple[KeptFamily, ...]]:
    """Returns where the store is, and the families in it, newest first.

    Raises:
        click.ClickException: if there is no store, or it cannot be used.
    """
    from fusioncache.store.entry import is_family

    return list_entries(directory, KeptFamily, is_family)


def format_lengths(lengths: Sequence[tuple[int, ...]]) -> str:
    """Returns the lengths of programs in short, such as ``2x64, 3x96``."""
    return ", ".join("x".join(map(str, each)) or "-" for each in lengths)


def _join(expressions: Sequence[Any]) -> str:
    return f"({', '.join(map(str, expressions))})"
