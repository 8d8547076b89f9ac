"""What a cache or a transform has done so far, counted, and the tables that a notebook shows of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType

from fusioncache.humanize import escape_controls, format_arities, format_seconds

_TITLES = ("template", "digest", "regions", "hits", "terms", "compiles", "compile seconds")
_SHOWN_DIGITS = 12

PROGRAM_RECORD = "record"
"""The part of ``Stats.program_seconds`` that keeping programs takes. All others are spent to load them."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the cache or the transform was made.

    Attributes:
        regions: fusion regions seen, bypassed ones included, and those of programs that were loaded.
        templates: distinct templates among them.
        hits: regions whose template was known already.
        misses: regions whose template was new.
        bypasses: regions left as Thunder made them, by reason.
        compiles: compilations asked of the backend: cores, inlined variants, stride variants and folds.
        compile_seconds: seconds spent in these, each with its first execution, which is when nvFuser compiles.
        loads: executables that were loaded from the store, where an earlier process or another one had compiled them.
        load_seconds: seconds spent in these.
        loaded_compile_seconds: seconds that compiling took what was loaded, where it was compiled.
        handed_over: executables that processes beside this one were to compile for it: see ``FusionCache(jobs=...)``.
        helped: those of them that were loaded when they were called for. The others were compiled here all the same,
            or nobody called for them yet.
        generalizations: those of the compilations that are for any sizes, because the graph was known with others.
        general_hits: graphs with other sizes than any before that needed no compile, because one of these serves them.
        general_saved_seconds: an estimate of what these would have spent on compiling: what it took for that which
            serves them.
        reused_sizes: those of them that were called so often that they got a function for their own sizes, which
            the store had or processes beside this one compiled.
        own_sizes: graphs that were compiled for their own sizes although they are known with others, by reason.
        taken_out: statements of Thunder's programs that its final traces are without, or that became others that take
            less, by what they were: see ``FusionCache(lean=...)``. Those of programs that were loaded are not counted.
        unkept: compilations whose result could not be stored, by reason.
        programs_loaded: programs that came from the store: what Thunder makes of a model for one kind of input, so that
            it interpreted nothing for it.
        loaded_program_seconds: seconds that deriving them took, where they were derived.
        programs_made: programs that Thunder derived here and that are kept for later processes; of Dynamo's graphs also
            the second one, which is derived with the first.
        programs_refused: programs that Thunder derived here and that are not kept, or that were found and not used, by
            reason.
        programs_replayed: programs whose operations were called again at another length, and that nobody interpreted.
            Thunder's passes went over them.
        programs_filled: programs that are those of other lengths with other numbers: no operation was called for them,
            and no pass of Thunder's went over them.
        passes_repeated: why passes went over programs although they were known at other lengths.
        programs_interpreted: why programs were interpreted although others of the same function were known at other
            lengths.
        program_seconds: seconds spent on programs, by what they were spent on. To load one: ``key``, ``load`` (looking
            into the store), ``reads`` (comparing them), ``build`` and ``templates`` (putting it together), the first
            three also where none fitted. To keep one: ``record``. To call its operations again: ``replay``. To learn
            what passes look at: ``passes``. To write other numbers into it: ``fill``.
        captures: forward and backward programs that were captured in CUDA graphs: see ``FusionCache(graphs=True)``.
        graph_replays: calls of forward and backward programs for which a graph was replayed.
        gradients_copied: gradients that were copied out of a graph's memory after a replay. Others were given as they
            lie there.
        not_captured: programs that are not captured although that was asked for, and calls that ran as they are, by
            reason.
        start_seconds: seconds that the one-time start of each compiler took in this process, by its name: importing
            it, and trying out what the processor can do; or that it waited for the start in a process beside. They are
            part of no template's ``compile_seconds`` or ``load_seconds``. What is loaded needs no compiler.
        saved_seconds: an estimate of the seconds that this process would have spent longer without fusioncache, on
            compiling regions and on deriving programs, less what fusioncache itself took for that. Less than nothing is
            a loss. A hit saves what Thunder alone spends on a further equal region, which is little with TorchInductor,
            as it has a cache of its own. What was loaded saves a compile, or deriving a program, less
            ``load_seconds``. Taken off are ``canonicalize_seconds`` and ``program_seconds``. Not counted are
            ``start_seconds``, which Thunder alone spends as well, faster tracing and faster later steps.
            ``general_saved_seconds`` are among them.
        canonicalize_seconds: seconds spent turning regions into templates, keys and plans.
        verified: regions that verify mode compared with their templates and found equal, each counted once for each
            layout of its inputs.
        verify_compiles: regions that verify mode compiled on their own for that, once for each layout: what Thunder's
            executor or the backend did. They are none of ``compiles``.
        verify_compile_seconds: seconds spent in these, each with its first execution; none of ``compile_seconds``.
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
    loaded_compile_seconds: float = 0.0
    handed_over: int = 0
    helped: int = 0
    generalizations: int = 0
    general_hits: int = 0
    general_saved_seconds: float = 0.0
    reused_sizes: int = 0
    own_sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    taken_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    unkept: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    programs_loaded: int = 0
    loaded_program_seconds: float = 0.0
    programs_made: int = 0
    programs_refused: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    programs_replayed: int = 0
    programs_filled: int = 0
    passes_repeated: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    programs_interpreted: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    program_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    captures: int = 0
    graph_replays: int = 0
    gradients_copied: int = 0
    not_captured: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    start_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    saved_seconds: float = 0.0
    canonicalize_seconds: float = 0.0
    verified: int = 0
    verify_compiles: int = 0
    verify_compile_seconds: float = 0.0

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        rows = [(name, str(getattr(self, name))) for name in ("regions", "templates", "hits", "misses")]
        rows += [(f"bypassed: {reason}", str(count)) for reason, count in sorted(self.bypasses.items())]
        rows += [("compiles", str(self.compiles)), ("compile seconds", format_seconds(self.compile_seconds))]
        rows += [(f"one-time start of {name}", format_seconds(took)) for name, took in self.start_seconds.items()]
        rows += [("loads", str(self.loads)), ("load seconds", format_seconds(self.load_seconds))]
        rows += [("generalizations", str(self.generalizations)), ("general hits", str(self.general_hits))]
        rows += [("reused sizes", str(self.reused_sizes))]
        rows += [(f"for their own sizes: {reason}", str(count)) for reason, count in sorted(self.own_sizes.items())]
        rows += [(f"taken out: {what}", str(count)) for what, count in sorted(self.taken_out.items())]
        rows += [(f"not kept: {reason}", str(count)) for reason, count in sorted(self.unkept.items())]
        rows += [("programs loaded", str(self.programs_loaded)), ("programs made", str(self.programs_made))]
        rows += [(f"program refused: {reason}", str(count)) for reason, count in sorted(self.programs_refused.items())]
        rows += [("programs replayed", str(self.programs_replayed)), ("programs filled", str(self.programs_filled))]
        rows += [(f"passes repeated: {reason}", str(count)) for reason, count in sorted(self.passes_repeated.items())]
        rows += [(f"interpreted: {reason}", str(count)) for reason, count in sorted(self.programs_interpreted.items())]
        rows += [("captures", str(self.captures)), ("graph replays", str(self.graph_replays))] if self.captures else []
        rows += [(f"not captured: {reason}", str(count)) for reason, count in sorted(self.not_captured.items())]
        rows += [("saved seconds, an estimate", format_seconds(self.saved_seconds))]
        rows += [("canonicalize seconds", format_seconds(self.canonicalize_seconds))]
        rows += [("verified regions and layouts", str(self.verified))] if self.verified else []
        return html_table((), rows)


@dataclass(frozen=True, slots=True)
class TemplateCounts:
    """One template's share.

    Attributes:
        name: the name of its calls in a trace.
        digest: of its key.
        ops: number of operations.
        regions: regions that have it.
        hits: those that came after it was known.
        arities: the numbers of residual terms it was asked for, each chain's in turn.
        compiles: compilations it caused. What it shares with another template counts for the one that came first.
        compile_seconds: seconds spent in these.
        loads: executables that were loaded for it from the store.
        load_seconds: seconds spent in these.
        loaded_compile_seconds: seconds that compiling these took, where they were compiled.
    """

    name: str
    digest: str
    ops: int
    regions: int
    hits: int
    arities: tuple[tuple[int, ...], ...]
    compiles: int
    compile_seconds: float
    loads: int
    load_seconds: float
    loaded_compile_seconds: float

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        return html_table(_TITLES, [self.row()])

    def row(self) -> tuple[str, ...]:
        """Returns what a list shows of the template, as text: see ``_TITLES``."""
        counts = str(self.regions), str(self.hits), format_arities(self.arities), str(self.compiles)
        return (self.name, self.digest[:_SHOWN_DIGITS], *counts, format_seconds(self.compile_seconds))


@dataclass(frozen=True, slots=True)
class TemplateStats(TemplateCounts):
    """One template's share, and what its key is made of.

    Attributes:
        ingredients: name and text of each part of its key.
    """

    ingredients: tuple[tuple[str, str], ...]


class AllTemplates(tuple[TemplateStats, ...]):
    """The templates of a cache, as a notebook shows them: in one table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        return html_table(_TITLES, [template.row() for template in self])


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as HTML, each with its name in the first cell, under titles if there are any. Escapes every text."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(_row(*row) for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _row(name: str, *cells: str) -> str:
    others = "".join(f"<td>{escape(escape_controls(cell))}</td>" for cell in cells)
    return f"<tr><th>{escape(escape_controls(name))}</th>{others}</tr>"
