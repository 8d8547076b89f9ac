"""The table of what fusioncache replaces in Thunder, or relies on: ``patches.txt``, read into rows."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from fusioncache.thunder_adapter.replacement import Replacement

_SECTION = re.compile(r"\[(?P<name>[^]]+)\](?: +(?P<module>[/\w.]+))?(?P<whole> +whole)?(?: +needs +(?P<needs>\w+))?")
_PLACE = re.compile(r"(?P<module>[\w.]+):(?P<path>[\w.]+)(?:\[(?P<item>[\w.]+)\])?")
_MAKER = re.compile(r"(?P<name>\w+)(?:\((?P<argument>\w+)\))?")


@dataclass(frozen=True, slots=True)
class Patch:
    """A row: a function of Thunder, and perhaps its replacement.

    Attributes:
        capability: the rows that work together.
        original: ``module:path``, or ``module:path[key]`` of a dict.
        digests: of the accepted sources, as ``digest_source`` returns them; empty if all sources are accepted.
        maker: ``module:function`` that makes the replacement from the original; empty if the others rely on this row.
        argument: of ``maker``, which then returns the function that makes the replacement; empty if it has none.
        everywhere: see ``Replacement``.
        around: see ``Replacement``.
        loaded: whether the module is left alone unless other code imported it.
    """

    capability: str
    original: str
    digests: tuple[str, ...]
    maker: str
    argument: str
    everywhere: bool
    around: bool
    loaded: bool = False

    def find(self) -> tuple[Any, Any]:
        """Returns what holds the original: a module, a class or a dict; and its name or key there.

        Raises:
            LookupError: if this Thunder has no such thing.
        """
        place = _PLACE.fullmatch(self.original)
        assert place, self.original
        try:
            holder: Any = importlib.import_module(place["module"])
            *path, name = place["path"].split(".")
            for part in path:
                holder = getattr(holder, part)
            if place["item"]:
                holder = getattr(holder, name)
                name = _find_key(holder, place["item"], importlib.import_module(place["module"]))
            if Replacement(holder, name, _keep).get() is None:
                raise AttributeError(name)
        except (ImportError, AttributeError, KeyError) as error:
            raise LookupError(f"Thunder has no {self.original}") from error
        return holder, name

    @property
    def is_idle(self) -> bool:
        """True if the row waits for a module that no code has imported."""
        return self.loaded and self.original.partition(":")[0] not in sys.modules

    def make_replacement(self) -> Replacement:
        """Returns the replacement, which is not installed.

        Raises:
            LookupError: if this Thunder has no such original.
        """
        module, _, name = self.maker.partition(":")
        make = getattr(importlib.import_module(module), name)
        make = make(self.argument) if self.argument else make
        return Replacement(*self.find(), make, everywhere=self.everywhere, around=self.around)


@dataclass(frozen=True, slots=True)
class PatchGroup:
    """The rows of a capability.

    Attributes:
        name: of the capability.
        whole: whether no row works without the others.
        needs: another capability, whose rows are installed as well; empty if there is none.
        rows: in the order in which they are installed.
    """

    name: str
    whole: bool
    needs: str
    rows: tuple[Patch, ...]


@cache
def list_patches() -> Mapping[str, PatchGroup]:
    """Returns all rows by their capability."""
    return MappingProxyType({group.name: group for group in read_table(Path(__file__).with_suffix(".txt").read_text())})


def read_table(text: str) -> Iterator[PatchGroup]:
    """Yields the rows in a text by their capability. The text has the format that ``patches.txt`` explains."""
    for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE)[1:]:
        head, *lines = section.splitlines()
        match = _SECTION.fullmatch(head)
        assert match, head
        module = match["module"] or ""
        folder = "fusioncache" if module.startswith("/") else "fusioncache.thunder_adapter"
        module = f"{folder}.{module.lstrip('/')}"
        rows = tuple(_read_row(match["name"], module, line) for line in lines if line and not line.startswith("#"))
        yield PatchGroup(match["name"], match["whole"] is not None, match["needs"] or "", rows)


def _read_row(capability: str, module: str, line: str) -> Patch:
    original, *words = line.split()
    flags = {word for word in words if word in ("everywhere", "around", "loaded")}
    *digests, replacement = (word for word in words if word not in flags)
    maker = _MAKER.fullmatch(replacement)
    return Patch(
        capability,
        original,
        () if digests == ["any"] else tuple(digests),
        f"{module}:{maker['name']}" if maker else "",
        (maker["argument"] or "") if maker else "",
        "everywhere" in flags,
        "around" in flags,
        "loaded" in flags,
    )


def _find_key(holder: Any, text: str, module: ModuleType) -> Any:
    """Returns the key of a dict: the text, or what it names in Python's builtins or in the interpreter.

    Raises:
        KeyError: if the dict has no such key.
    """
    if text in holder:
        return text
    first, *path = text.split(".")
    key = getattr(builtins, first, None) or getattr(module, first)
    for part in path:
        key = getattr(key, part)
    holder[key]
    return key


def _keep(original: Any) -> Any:
    return original
