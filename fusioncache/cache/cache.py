"""The cache: which templates are known, and what was compiled for them."""

from __future__ import annotations

from collections.abc import Mapping

from fusioncache.cache.ledger import Ledger
from fusioncache.cache.lru import LruMap
from fusioncache.cache.program import Compiler, Program
from fusioncache.cache.recorder import Recorder
from fusioncache.cache.stats import Stats, TemplateStats
from fusioncache.ir import Graph, Key, Original, Template
from fusioncache.template.key import make_key
from fusioncache.template.name import template_name


class Cache:
    """Compiled templates in memory, shared by all models of a process that are given it.

    Args:
        capacity: how many templates are kept, and how many compiled programs. Least recently used leaves first; what a
            compiled model still uses lives on with it.
        record: whether to leave a record of the run for the command line, in ``FUSIONCACHE_DIR`` or the platform's
            cache directory.

    Raises:
        ValueError: if ``capacity`` is less than 1.
    """

    def __init__(self, *, capacity: int = 4096, record: bool = True):
        self._templates: LruMap[Key, Template] = LruMap(capacity)
        self._programs: LruMap[Key, Program] = LruMap(capacity)
        self.ledger = Ledger()
        self._recorder = Recorder(self.ledger) if record else None

    def template(self, graph: Graph, environment: Mapping[str, str]) -> tuple[Template, bool]:
        """The template with this canonical graph, and whether it was known."""
        key = make_key(graph, environment)
        return self._templates.get_or_make(key, lambda: Template(graph, key, template_name(graph, key)))

    def program(
        self, graph: Graph, original: Original | None, environment: Mapping[str, str], compiler: Compiler
    ) -> Program:
        """The program for a graph without parameters. ``compiler`` makes it, from the original, if it is not there."""
        key = make_key(graph, environment)
        return self._programs.get_or_make(key, lambda: Program(graph, compiler, original))[0]

    def stats(self) -> Stats:
        """What all users of this cache have done so far."""
        return self.ledger.stats()

    def templates(self) -> tuple[TemplateStats, ...]:
        """The templates seen so far, each with its counts."""
        return self.ledger.templates()

    def save(self) -> None:
        """Brings the record on disk up to date. Never raises: a record that cannot be written costs one warning."""
        if self._recorder:
            self._recorder.save()

    def clear(self) -> None:
        """Forgets all templates and programs. Compiled models keep working; counts stay."""
        self._templates.clear()
        self._programs.clear()
