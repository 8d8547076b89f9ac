"""Which templates of a run are listed, and which come first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Sort = Literal["seconds", "regions", "hits", "name", "size"]

DEAREST_FIRST = "compile_seconds DESC, regions DESC, name, digest"

_FIRST: Mapping[Sort, str] = {
    "seconds": "compile_seconds DESC",
    "regions": "regions DESC",
    "hits": "hits DESC",
    "name": "name",
    "size": "ops DESC",
}

MATCHES = """(:name IS NULL OR instr(templates.name, :name))
    AND (:backend IS NULL OR EXISTS (SELECT 1 FROM json_each(templates.ingredients)
        WHERE json_extract(value, '$[0]') = 'backend' AND json_extract(value, '$[1]') = :backend))
    AND (:text IS NULL OR EXISTS (SELECT 1 FROM json_each(templates.ingredients)
        WHERE instr(json_extract(value, '$[1]'), :text)))"""
"""Of a row of ``templates``, in SQL: whether it is one of a listing's."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What is asked of the templates of a run. What is None does not matter.

    Attributes:
        name: they have this in their name.
        backend: they are of this backend.
        text: they have this in an ingredient of their key.
        sort: what comes first: the largest number, or the first name. Among equals it is the most expensive.
        limit: how many there are at most.
    """

    name: str | None = None
    backend: str | None = None
    text: str | None = None
    sort: Sort = "seconds"
    limit: int | None = None

    @property
    def order(self) -> str:
        """The columns to sort by, in SQL."""
        return f"{_FIRST[self.sort]}, {DEAREST_FIRST}"

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """What ``MATCHES`` and a limit are given."""
        limit = -1 if self.limit is None else self.limit
        return {"name": self.name, "backend": self.backend, "text": self.text, "limit": limit}
