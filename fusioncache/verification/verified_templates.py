"""Templates that computed what their regions do in a Thunder that was not tried. Later processes need not verify them.

A program calls templates only once all of them are known to be right, so that nothing is stored that was not verified.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.ir import Key
from fusioncache.ir.strict_json import decode, encode
from fusioncache.store import Store
from fusioncache.store.entry import VERIFIED_SLOT

FORMAT = 1
_FILE, LIMIT = "verified.json", 16
"""The name of the document, and the most pairs of a Thunder and a compiler for which a template is known."""


@dataclass(frozen=True, slots=True)
class VerifiedTemplates:
    """The templates that are known to be right.

    Attributes:
        store: keeps them; None if there is none.
        sources: the digest of the sources of the installed Thunder, which makes the regions.
    """

    store: Store | None
    sources: str

    def has(self, key: Key, compiler: str) -> bool:
        """True if a template by this compiler is known to be right. Never raises."""
        return f"{self.sources} {compiler}" in self._read(key)

    def add(self, key: Key, compiler: str) -> None:
        """Adds a template by a compiler. Never raises."""
        if self.store is None or not self.sources:
            return
        with self.store.take_turn(key, VERIFIED_SLOT, 1.0):
            known = self._read(key)
            mark = f"{self.sources} {compiler}"
            if mark in known:
                return
            self.store.remove(key, VERIFIED_SLOT)
            content = encode({"format": FORMAT, "verified": [*known[1 - LIMIT :], mark]})
            self.store.save(key, VERIFIED_SLOT, {_FILE: content}, name="verified template")

    def _read(self, key: Key) -> list[str]:
        artifacts = self.store.peek(key, VERIFIED_SLOT) if self.store else None
        if self.store is None or artifacts is None:
            return []
        try:
            (marks,) = decode(artifacts.get(_FILE, b""), "verified templates", format=FORMAT).fields("verified")
            return [mark.text() for mark in marks.items()]
        except ValueError as error:
            self.store.discard(key, VERIFIED_SLOT, f"a mark that does not decode: {type(error).__name__}")
            return []
