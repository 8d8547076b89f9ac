"""What a cache or a transform has done so far, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the cache or the transform was made.

    Attributes:
        regions: fusion regions seen, bypassed ones included.
        templates: distinct templates among them.
        hits: regions whose template was known already.
        misses: regions whose template was new.
        bypasses: regions left as Thunder made them, by reason.
        compiles: compilations asked of the backend: cores, inlined variants, stride variants and folds.
        compile_seconds: seconds spent in these, each with its first execution, which is when nvFuser compiles.
        loads: programs that were loaded from the store, where an earlier process or another one had compiled them.
        load_seconds: seconds spent in these.
        unkept: compilations whose result could not be stored, by reason.
        saved_seconds: an estimate: each template's measured compile seconds times its hits.
        canonicalize_seconds: seconds spent turning regions into templates, keys and plans.
    """

    regions: int = 0
    templates: int = 0
    hits: int = 0
    misses: int = 0
    bypasses: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    compiles: int = 0
    compile_seconds: float = 0.0
    loads: int = 0
    load_seconds: float = 0.0
    unkept: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    saved_seconds: float = 0.0
    canonicalize_seconds: float = 0.0

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from fusioncache.report.notebook import stats_html

        return stats_html(self)


@dataclass(frozen=True, slots=True)
class TemplateStats:
    """One template's share.

    Attributes:
        name: the name of its calls in a trace.
        digest: of its key.
        ingredients: name and text of each part of its key.
        regions: regions that have it.
        hits: those that came after it was known.
        arities: the numbers of residual terms it was asked for, each chain's in turn.
        compiles: compilations it caused. What it shares with another template counts for the one that came first.
        compile_seconds: seconds spent in these.
        loads: programs that were loaded for it from the store.
        load_seconds: seconds spent in these.
    """

    name: str
    digest: str
    ingredients: tuple[tuple[str, str], ...]
    regions: int
    hits: int
    arities: tuple[tuple[int, ...], ...]
    compiles: int
    compile_seconds: float
    loads: int = 0
    load_seconds: float = 0.0

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from fusioncache.report.notebook import templates_html

        return templates_html((self,))


class AllTemplates(tuple[TemplateStats, ...]):
    """The templates of a cache, as a notebook shows them: in one table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from fusioncache.report.notebook import templates_html

        return templates_html(self)
