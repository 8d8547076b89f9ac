"""Counts of a cache or a transform, and their tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from types import MappingProxyType
from typing import Any

from fusioncache.humanize import escape_controls, format_arities, format_number, format_seconds

_TITLES = ("template", "digest", "regions", "hits", "terms", "compiles", "compile seconds")
_SHOWN_DIGITS = 12

PROGRAM_RECORD = "record"
"""The part of ``Stats.program_seconds`` for storing programs. All other parts are for loading them."""
_ALWAYS_SHOWN = ("regions", "templates", "hits", "misses")
_NO_REASONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the cache or the transform was made.

    Attributes:
        regions: fusion regions seen, including bypassed ones and those of loaded programs.
        templates: distinct templates among them.
        hits: regions whose template was known.
        misses: regions whose template was new.
        bypasses: regions left as Thunder made them, by reason.
        compiles: compilations by the backend: cores, inlined variants, stride variants and folds.
        compile_seconds: seconds spent in these, each with its first execution, which is when nvFuser compiles.
        loads: executables that were loaded from the store, compiled by an earlier process or another one.
        load_seconds: seconds spent in these.
        loaded_compile_seconds: seconds that compiling the loaded executables took, where they were compiled.
        handed_over: executables that were queued for other processes to compile: see ``FusionCache(jobs=...)``.
        helped: those of them that were loaded when they were called. The others were compiled in this process, or were
            not called yet.
        lengths_queued: executables that were queued for the lengths of ``FusionCache(lengths=...)``. No call waits for
            these.
        lengths_compiled: those of them that other processes have finished.
        lengths_refused: lengths for which nothing was queued, by reason.
        pulled: entries that came from the remote, by the name of the key that signed them.
        pulled_seconds: seconds that other machines spent on compiling and tracing the entries that were pulled, in this
            run or before, and loaded.
        pull_refused: entries and packs of a remote that are not used, by reason; and why it could not be asked.
        generalizations: those of the compilations that are for any sizes, because the graph was known with others.
        general_hits: graphs with new sizes that needed no compile, because one of these or code derived from it serves
            them.
        general_saved_seconds: an estimate of the compile seconds that these saved: the compile seconds of the functions
            that serve them.
        own_sizes: graphs that were compiled for one size only although they are known with others, by reason.
        taken_out: operations of Thunder's programs that were removed or simplified, by kind: see
            ``FusionCache(lean=...)``. Those of loaded programs are not counted.
        unkept: compilations whose result could not be stored, by reason.
        programs_loaded: programs that came from the store, so that Thunder did not trace. A program is Thunder's result
            for a model and one kind of input.
        loaded_program_seconds: seconds that tracing them took, in the processes that stored them.
        programs_made: programs that Thunder traced in this process and that are stored.
        programs_refused: programs that Thunder traced and that are not stored, or that were found and not used, by
            reason.
        programs_replayed: programs of a further length whose operations were replayed, so that Thunder did not
            interpret the model. Its passes ran.
        programs_filled: programs of a further length that were filled in from those of other lengths: no operation was
            replayed for them, and no pass of Thunder ran.
        passes_repeated: replayed programs that were not filled in, so that Thunder's passes ran, by reason.
        programs_interpreted: programs of a further length that were neither replayed nor filled in, so that Thunder
            traced again, by reason.
        program_seconds: seconds spent on programs, by activity. To load one: ``key``, ``load`` (looking into the
            store), ``reads`` (comparing them), ``build`` and ``templates`` (building it), the first three also if no
            program fitted. To store one: ``record``. To replay its operations: ``replay``. To record what passes depend
            on: ``passes``. To fill in other sizes: ``fill``.
        captures: forward and backward programs that were captured in CUDA graphs: see ``FusionCache(graphs=True)``.
        graph_replays: calls of forward and backward programs for which a graph was replayed.
        gradients_copied: gradients that were copied out of a graph's memory after a replay. Others were returned
            without a copy.
        not_captured: programs that were not captured although that was requested, and calls that ran without a graph,
            by reason.
        start_seconds: seconds of the one-time start of each compiler in this process, by its name: importing it, and
            probing the processor; or waiting for this start in another process. They are not part of a template's
            ``compile_seconds`` or ``load_seconds``. Loading needs no compiler.
        saved_seconds: an estimate of the seconds that this process would have spent additionally without fusioncache,
            on compiling regions and on tracing programs, less the time that fusioncache took for that. Negative is a
            loss. A hit saves the time that Thunder alone spends on a further equal region, which is little with
            TorchInductor, because it has its own cache. A load saves a compile, or tracing a program, less
            ``load_seconds``. ``canonicalize_seconds`` and ``program_seconds`` are subtracted.
            Not counted are ``start_seconds``, which Thunder alone spends as well, faster tracing and faster later
            steps. ``general_saved_seconds`` are included.
        canonicalize_seconds: seconds spent turning regions into templates, keys and plans.
        verified: regions that verify mode compared with their templates and found equal, each counted once for each
            layout of its inputs.
        verify_compiles: regions that verify mode compiled alone for that, by Thunder's executor or the backend, once
            for each layout. They are not included in ``compiles``.
        verify_compile_seconds: seconds spent in these, each with its first execution; not included in
            ``compile_seconds``.
    """

    regions: int = 0
    templates: int = 0
    hits: int = 0
    misses: int = 0
    bypasses: Mapping[str, int] = _NO_REASONS
    compiles: int = 0
    compile_seconds: float = 0.0
    loads: int = 0
    load_seconds: float = 0.0
    loaded_compile_seconds: float = 0.0
    handed_over: int = 0
    helped: int = 0
    lengths_queued: int = 0
    lengths_compiled: int = 0
    lengths_refused: Mapping[str, int] = _NO_REASONS
    pulled: Mapping[str, int] = _NO_REASONS
    pulled_seconds: float = 0.0
    pull_refused: Mapping[str, int] = _NO_REASONS
    generalizations: int = 0
    general_hits: int = 0
    general_saved_seconds: float = 0.0
    own_sizes: Mapping[str, int] = _NO_REASONS
    taken_out: Mapping[str, int] = _NO_REASONS
    unkept: Mapping[str, int] = _NO_REASONS
    programs_loaded: int = 0
    loaded_program_seconds: float = 0.0
    programs_made: int = 0
    programs_refused: Mapping[str, int] = _NO_REASONS
    programs_replayed: int = 0
    programs_filled: int = 0
    passes_repeated: Mapping[str, int] = _NO_REASONS
    programs_interpreted: Mapping[str, int] = _NO_REASONS
    program_seconds: Mapping[str, float] = _NO_REASONS
    captures: int = 0
    graph_replays: int = 0
    gradients_copied: int = 0
    not_captured: Mapping[str, int] = _NO_REASONS
    start_seconds: Mapping[str, float] = _NO_REASONS
    saved_seconds: float = 0.0
    canonicalize_seconds: float = 0.0
    verified: int = 0
    verify_compiles: int = 0
    verify_compile_seconds: float = 0.0

    def _repr_html_(self) -> str:
        """Returns the HTML for a notebook."""
        counts = {each.name: getattr(self, each.name) for each in fields(self)}
        shown = {name: count for name, count in counts.items() if count or name in _ALWAYS_SHOWN}
        return html_table((), list_counts(shown))


NOT_GIVEN = "not given to Thunder: "
"""The prefix of reasons in ``Stats.bypasses`` for operations that are not given to Thunder."""


def find_not_given(bypasses: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the reasons why operations of Dynamo's graphs were not given to Thunder, with their counts."""
    found = (reason for reason in bypasses if reason.startswith(NOT_GIVEN))
    return {reason.removeprefix(NOT_GIVEN): bypasses[reason] for reason in found}


def find_bypasses(bypasses: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the bypass reasons for regions and for sums of residual streams."""
    return {reason: count for reason, count in bypasses.items() if not reason.startswith(NOT_GIVEN)}


def list_counts(counts: Mapping[str, float | Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Yields each count with its name, followed by its reasons or parts if it has any."""
    for name, count in counts.items():
        parts = count if isinstance(count, Mapping) else {}
        yield name, format_number(sum(parts.values()) if isinstance(count, Mapping) else count)
        yield from ((f"  {part}", format_number(number)) for part, number in parts.items())


@dataclass(frozen=True, slots=True)
class TemplateStats:
    """One template's share of the counts, and the ingredients of its key.

    Attributes:
        name: the name of its calls in a trace.
        digest: of its key.
        ops: number of operations.
        regions: number of its regions.
        hits: those for which it was known.
        arities: the numbers of residual terms of its regions, one for each chain.
        compiles: compilations it caused. One that it shares with another template counts for the first of them.
        compile_seconds: seconds spent in these.
        loads: executables that were loaded for it from the store.
        load_seconds: seconds spent in these.
        loaded_compile_seconds: seconds that compiling these took, where they were compiled.
        ingredients: name and text of each ingredient of its key.
    """

    name: str = ""
    digest: str = ""
    ops: int = 0
    regions: int = 0
    hits: int = 0
    arities: tuple[tuple[int, ...], ...] = ()
    compiles: int = 0
    compile_seconds: float = 0.0
    loads: int = 0
    load_seconds: float = 0.0
    loaded_compile_seconds: float = 0.0
    ingredients: tuple[tuple[str, str], ...] = ()

    @property
    def texts(self) -> dict[str, str]:
        """The ingredients of its key, name to text."""
        return dict(self.ingredients)

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts as JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "ingredients"}

    def _repr_html_(self) -> str:
        """Returns the HTML for a notebook."""
        return html_table(_TITLES, [self.row()])

    def row(self) -> tuple[str, ...]:
        """Returns the template's cells in a table, as text: see ``_TITLES``."""
        counts = str(self.regions), str(self.hits), format_arities(self.arities), str(self.compiles)
        return (self.name, self.digest[:_SHOWN_DIGITS], *counts, format_seconds(self.compile_seconds))


class AllTemplates(tuple[TemplateStats, ...]):
    """The templates of a cache, which a notebook shows in one table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns the HTML for a notebook."""
        return html_table(_TITLES, [template.row() for template in self])


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as an HTML table, with row names in the first cell, and optional titles. Escapes every text."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(_row(*row) for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _row(name: str, *cells: str) -> str:
    others = "".join(f"<td>{escape(escape_controls(cell))}</td>" for cell in cells)
    return f"<tr><th>{escape(escape_controls(name))}</th>{others}</tr>"
