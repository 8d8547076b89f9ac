"""What a ledger counts for each template, and of programs. Whoever has one holds the ledger's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fusioncache.ir import Template
from fusioncache.observe.record.savings import repeats_of
from fusioncache.observe.record.stats import TemplateStats


class Counts:
    """Counts of regions, and of what was compiled and loaded for them."""

    __slots__ = (
        "again_seconds",
        "compile_seconds",
        "compiles",
        "first_seconds",
        "general_seconds",
        "hits",
        "load_seconds",
        "loaded_compile_seconds",
        "loads",
        "regions",
    )

    def __init__(self) -> None:
        self.regions = self.hits = self.compiles = self.loads = 0
        self.compile_seconds = self.load_seconds = self.loaded_compile_seconds = self.general_seconds = 0.0
        self.first_seconds = self.again_seconds = 0.0

    def add(self, counts: Mapping[str, int | float]) -> None:
        """Adds to the counts of these names."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)


class Account(Counts):
    """The counts of one template, and what sharing it saved.

    Args:
        template: it.
        number: how many templates were seen before it.

    Attributes:
        is_changed: whether something was counted that was not taken since.
    """

    __slots__ = ("arities", "is_changed", "number", "saved_seconds", "template")

    def __init__(self, template: Template, number: int):
        super().__init__()
        self.template = template
        self.number = number
        self.is_changed = False
        self.arities: set[tuple[int, ...]] = set()
        self.saved_seconds = 0.0

    def save(self, again_seconds: float) -> float:
        """Counts what was saved: see ``savings``. Returns what is new.

        Args:
            again_seconds: that Thunder alone spends on further regions, one for each executable of the template.
        """
        before = self.saved_seconds
        repeats, kinds = repeats_of(self.hits, len(self.arities), self.compiles + self.loads)
        spared = self.first_seconds + again_seconds / kinds * repeats
        self.saved_seconds = spared - self.compile_seconds - self.load_seconds
        return self.saved_seconds - before

    def freeze(self) -> TemplateStats:
        """Returns the counts now."""
        key = self.template.key
        return TemplateStats(
            name=self.template.name,
            digest=key.digest,
            ops=len(self.template.graph.ops),
            regions=self.regions,
            hits=self.hits,
            arities=tuple(sorted(self.arities)),
            compiles=self.compiles,
            compile_seconds=self.compile_seconds,
            loads=self.loads,
            load_seconds=self.load_seconds,
            loaded_compile_seconds=self.loaded_compile_seconds,
            ingredients=tuple((part.name, part.text) for part in key.ingredients),
        )


class ProgramCounts:
    """Counts of whole programs, the reasons for what was not done, and the seconds of each part."""

    __slots__ = (
        "filled",
        "interpreted",
        "loaded",
        "loaded_seconds",
        "made",
        "passes_repeated",
        "refused",
        "replayed",
        "seconds",
    )

    def __init__(self) -> None:
        self.loaded = self.made = self.replayed = self.filled = 0
        self.interpreted: Counter[str] = Counter()
        self.passes_repeated: Counter[str] = Counter()
        self.loaded_seconds = 0.0
        self.refused: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
