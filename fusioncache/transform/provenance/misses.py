"""Explains misses as they happen: the nearest key, its difference, and the user's source line.

``FUSIONCACHE_EXPLAIN=1`` or ``FusionCache(explain=True)`` prints to stderr: for each new template that had to be
compiled, after its compile; and for each executable that was compiled although the store has one of the same graph. Of
new templates that were loaded it prints the number, once all were called. Failures of an explanation do not reach the
model.
"""

from __future__ import annotations

import atexit
import linecache
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.bound_symbols import result_names
from fusioncache.cache.cache import Cache
from fusioncache.humanize import format_count, format_duration
from fusioncache.ir import Graph, Key, Op, Region, Template
from fusioncache.ir.keys import read_key
from fusioncache.observe.explain.changes import NONE
from fusioncache.observe.explain.difference import Difference, compare, explain_miss, write_miss
from fusioncache.observe.explain.pairing import describe_op
from fusioncache.observe.record.events import CompileEvent
from fusioncache.observe.record.observations import Line
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.process import forks
from fusioncache.process.secrets import hide_line
from fusioncache.process.warning import log_errors, write_line
from fusioncache.template.key import template_name

Lines = Mapping[str, Line]
"""The source lines of a model's values, by the values' names in traces."""


@dataclass(frozen=True, slots=True)
class _Miss:
    """A new template, the region in which it was first seen, that region's symbol, and its trace's lines."""

    template: Template
    region: Region
    fusion: Any
    lines: Lines


class Misses:
    """The new templates of a transform. Each one is explained after its first call, if it had to be compiled."""

    def __init__(self, cache: Cache):
        self._cache = cache
        self._waiting: dict[str, _Miss] = {}
        self._general: set[str] = set()
        self._loaded: list[float] = []
        self._lock = forks.lock()
        atexit.register(_finish, weakref.ref(self))

    def add(self, template: Template, region: Region, fusion: Any, lines: Lines) -> None:
        """Adds a new template, the region in which it was first seen, its symbol, and its trace's lines."""
        with self._lock:
            self._waiting[template.key.digest] = _Miss(template, region, fusion, lines)

    def note_call(self, template: Template) -> None:
        """Explains a new template after a first call for a layout. Never raises."""
        with self._lock:
            miss = self._waiting.pop(template.key.digest, None)
        if miss is None:
            return
        with log_errors("a miss is not explained"):
            self._explain(miss)
        if not self._waiting:
            self.finish()

    def finish(self) -> None:
        """Prints how many templates were loaded, unless this was printed already."""
        with self._lock:
            loaded, self._loaded = self._loaded, []
        if loaded:
            count = format_count(len(loaded), "template was", "templates were")
            seconds = format_duration(sum(loaded))
            write_line(f"fusioncache: {count} loaded from the store (what their compiles took: {seconds}).")

    def _explain(self, miss: _Miss) -> None:
        """Prints a paragraph for a template if any part of it had to be compiled; counts it if it was loaded."""
        counts = self._cache.ledger.template(miss.template.key.digest)
        if counts is not None and counts.compiles:
            templates = self._cache.templates()
            number = next(number for number, known in enumerate(templates) if known.digest == counts.digest)
            write_line(_write_paragraph(miss, templates[:number], general=counts.digest in self._general))
        elif counts is not None and counts.loads:
            with self._lock:
                self._loaded.append(counts.loaded_compile_seconds)

    def note_compile(self, event: CompileEvent) -> None:
        """Explains, on a new thread, an executable that was compiled although the store has a similar one."""
        if event.general and event.template is not None:
            self._general.add(event.template.key.digest)
        store = self._cache.store
        if store is not None and event.graph is not None and event.key is not None and not event.loaded:
            args = (store, event.graph, event.key, event.backend)
            with log_errors("a compilation is not explained"):  # such as at interpreter shutdown: no thread is started
                threading.Thread(target=self._explain_executable, args=args, name="fusioncache explain").start()

    def _explain_executable(self, store: Any, graph: Graph, key: Key, backend: str) -> None:
        with log_errors("a compilation is not explained"):
            nearest = store.find_nearest(key, backend)
            if nearest:
                reason = compare(key.texts, read_key(nearest.text)).sentence("here", "there")
                name = template_name(graph, key)
                write_line(
                    f"fusioncache: {name} was compiled although the store has the same for something else. {reason}"
                )


def _finish(misses: weakref.ref[Misses]) -> None:
    left = misses()
    if left is not None:
        left.finish()


def _write_paragraph(miss: _Miss, before: Sequence[TemplateStats], *, general: bool) -> str:
    nearest, difference = explain_miss(miss.template.key.texts, [known.texts for known in before])
    text = write_miss(None if nearest is None else before[nearest].name, difference)
    text += " Its code also serves other sizes and constants." if general else ""
    return f"fusioncache: {miss.template.name} is new. {text}{_find_source(miss, difference)}"


def _find_source(miss: _Miss, difference: Difference) -> str:
    """Returns the user's line of the op that differs, or else of any op of the region; empty if none is known."""
    wanted = _find_op(miss.template, difference)
    symbols = list(zip(miss.region.ops, miss.fusion.subsymbols, strict=True))
    ordered = sorted(symbols, key=lambda pair: wanted is None or describe_op(pair[0]) != describe_op(wanted))
    found = [line for _, symbol in ordered for line in _find_lines(symbol, miss.lines)]
    line = next((line for line in found if not line.library), found[0] if found else None)
    if line is None:
        return ""
    text = hide_line(linecache.getline(line.file, line.number).strip())
    return f"\n  {line}: {text}" if text else f"\n  {line}"


def _find_op(template: Template, difference: Difference) -> Op | None:
    """Returns the template's op that differs; None if no op differs, or only one of the other template."""
    change = difference.changes[0] if difference.changes else None
    if change is None or change.op is None or change.a == NONE:
        return None
    return template.graph.ops[change.op - 1]


def _find_lines(symbol: Any, lines: Lines) -> list[Line]:
    """Returns the line of an op's result, or else those of its operands, as in a backward pass."""
    own = [lines[name] for name in result_names(symbol) if name in lines]
    return own or [lines[proxy.name] for proxy in symbol.flat_proxy_args if proxy.name in lines]
