"""What the commands print of runs, for people: one on a screen, one count by count, many in a table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.storage import StoreUsage
from fusioncache.cli.terminal import Column, count_columns, format_pairs, print_table, shorten, wrap
from fusioncache.humanize import (
    describe_savings,
    escape_controls,
    format_bytes,
    format_count,
    format_duration,
    format_seconds,
    format_time,
)
from fusioncache.observe.record.observations import Lifetime
from fusioncache.observe.record.phases import PHASES
from fusioncache.observe.record.runs import Run, format_run_name
from fusioncache.observe.record.stats import Stats, find_bypasses, find_not_given

if TYPE_CHECKING:
    from fusioncache.cli.programs import KeptProgram
    from fusioncache.store import Entry

_WIDTH = 80
_LABEL = 12
_MOST_PHASES = 4
_MOST_REASONS = 3
_ID_DIGITS = 8
_END = len("GPT · 2023-11-14 22:13")
"""Characters of the end of a run's name that stay: the last model, and when it started."""
_RUN_COLUMNS = (
    Column("id", id=True),
    Column("run", cut=True, end=_END),
    Column("regions", number=True),
    Column("compiles", number=True),
    Column("loads", number=True),
    Column("saved", number=True),
)


def print_summary(run: Run, lifetime: Lifetime, store: StoreUsage | None) -> None:
    """Prints what matters of a run, in less than a screen of 80 columns.

    Args:
        run: it.
        lifetime: what all runs did.
        store: the store as it is now; None if there is none.
    """
    click.echo(_headline(run))
    sections = (_counts(run), _surroundings(lifetime, store), _next(run.stats))
    for section in sections:
        click.echo("\n" + "\n".join(_wrap(label, escape_controls(text)) for label, text in section))


def print_store(
    path: Path,
    executables: Sequence[Entry],
    refused: Mapping[str, str],
    programs: Sequence[KeptProgram],
    usage: StoreUsage | None,
) -> None:
    """Prints what a store has, on a machine where no run is on record.

    Args:
        path: of the store.
        executables: what backends compiled, and notes of what cannot be stored.
        refused: why something cannot be stored, by digest and backend.
        programs: what Thunder made of models.
        usage: how much of it there is; None if that cannot be read.
    """
    loadable = [one for one in executables if f"{one.digest}.{one.backend}" not in refused]
    backends = Counter(one.backend for one in loadable)
    by_backend = ", ".join(f"{count} by {escape_controls(name)}" for name, count in sorted(backends.items()))
    models = Counter(one.name for one in programs)
    by_model = ", ".join(f"{count} of {escape_controls(name)}" for name, count in sorted(models.items()))
    lines = [
        ("store", f"{format_bytes(usage.size if usage else 0)}, in {path}"),
        ("executables", _format_stored(len(loadable), by_backend, "compiling", sum(one.seconds for one in loadable))),
        ("programs", _format_stored(len(programs), by_model, "tracing", sum(one.seconds for one in programs))),
    ]
    if refused:
        lines.append(("not stored", f"{len(refused)}, which each process compiles: 'fusioncache ls' says why"))
    commands = ("fusioncache ls               the executables", "fusioncache ls --programs    the programs")
    next_ = [("" if number else "next", command) for number, command in enumerate(commands)]
    click.echo("No run is on record here. The store has what other runs compiled:")
    for section in (lines, next_):
        click.echo("\n" + "\n".join(_wrap(label, text) for label, text in section))


def _format_stored(count: int, parts: str, what: str, seconds: float) -> str:
    return f"{count} ({parts}); {what} took {format_duration(seconds)}" if count else "none"


def format_short_name(run: Run) -> str:
    """Returns a run's name as a table shows it: a run of today without its day."""
    return escape_controls(format_run_name(run.command, run.models, run.started, today=time.time()))


def format_run_label(run: Run) -> str:
    """Returns a run's name and the start of its id, in a line of 80 columns with room for a word before it."""
    id_ = run.id[:_ID_DIGITS]
    name = shorten(format_short_name(run), _width() - _LABEL - len(id_) - 8, _END)
    return f"{name}  (run {id_})"


def _width() -> int:
    """Returns the width of the lines: that of the terminal, and at most 80 columns."""
    return min(count_columns() or _WIDTH, _WIDTH)


def _headline(run: Run) -> str:
    lasted = format_duration(max(run.updated - run.started, 0.0))
    state = f"It ended after {lasted}." if run.ended else f"It is still running, or was killed after {lasted}."
    return f"{format_run_label(run)}\n{state}"


def _counts(run: Run) -> Iterator[tuple[str, str]]:
    stats = run.stats
    if stats.regions:
        shared = f"{stats.hits} ({stats.hits / stats.regions:.0%}) shared"
        yield "regions", f"{stats.regions}, of {format_count(stats.templates, 'template', 'templates')}; {shared}"
    else:
        yield "regions", f"0. {run.why_without_regions}"
    yield "compiled", f"{_executables(stats.compiles)}{_in(stats.compiles, stats.compile_seconds)}"
    for name, seconds in stats.start_seconds.items():
        yield "started", f"one-time start of {name}: {format_duration(seconds)}"
    before = f", which took {format_duration(stats.loaded_compile_seconds)} to compile before" if stats.loads else ""
    yield "loaded", f"{_executables(stats.loads)}{_in(stats.loads, stats.load_seconds)}{before}"
    if stats.generalizations or stats.general_hits or stats.own_sizes:
        yield from _label("sizes", _list_sizes(stats))
    yield from _label("programs", list_programs(run))
    yield from _label("CUDA graphs", _list_graphs(stats))
    yield "saved", _format_saved(stats)
    if phases := run.phases.to_dict():
        yield "time", _time(phases)
    if not_given := find_not_given(stats.bypasses):
        what = "operation" if sum(not_given.values()) == 1 else "operations"
        yield "Dynamo", _reasons(not_given, f"{what} not given to Thunder")
    if stats.regions and (bypasses := find_bypasses(stats.bypasses)):
        yield "bypassed", _reasons(bypasses, "left as Thunder made them")
    if stats.unkept:
        yield "not stored", _reasons(stats.unkept, "compiled by each process")
    if run.missing:
        yield "not listed", run.missing
    if stats.verified or stats.verify_compiles:
        pairs = format_count(stats.verified, "region and layout", "regions and layouts")
        equal = f"{pairs} computed what they compute when compiled alone"
        own = f"{format_count(stats.verify_compiles, 'compile', 'compiles')} only for that"
        yield "verified", f"{equal}; {own}{_in(stats.verify_compiles, stats.verify_compile_seconds)}"


def _surroundings(lifetime: Lifetime, store: StoreUsage | None) -> Iterator[tuple[str, str]]:
    shared = f"{lifetime.hits / lifetime.regions:.0%} of {lifetime.regions} regions shared" if lifetime.regions else ""
    executables = lifetime.loads + lifetime.compiles
    loaded = f"{lifetime.loads / executables:.0%} of {executables} executables loaded" if executables else ""
    saved = describe_savings(lifetime.saved_seconds) if lifetime.saved_seconds else ""
    since = f"{format_count(lifetime.runs, 'run', 'runs')} since {format_time(lifetime.since)[:10]}"
    yield "all runs", ", ".join(part for part in (since, shared, loaded, saved) if part)
    if store is None:
        yield "store", "none yet"
    else:
        programs = f" and {format_count(store.programs, 'program', 'programs')}" if store.programs else ""
        yield "store", f"{_executables(store.executables)}{programs}, {format_bytes(store.size)}, in {store.path}"


def _next(stats: Stats) -> Iterator[tuple[str, str]]:
    commands = ["fusioncache stats --verbose  every count"]
    if stats.regions:
        commands.insert(0, "fusioncache report --open    the run as a map of the model")
    if stats.misses and stats.compiles:
        commands.insert(0, "fusioncache explain          why templates were new")
    for number, command in enumerate(commands):
        yield "" if number else "next", command


def _format_saved(stats: Stats) -> str:
    if stats.saved_seconds < 0:
        why = "what fusioncache itself took is more than what it spared"
        return f"{describe_savings(stats.saved_seconds)}: {why}"
    return f"about {format_duration(stats.saved_seconds)}" if stats.saved_seconds else "nothing"


def _label(label: str, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields a line for each part, the first one with the label."""
    yield from ((label if number == 0 else "", part) for number, part in enumerate(parts))


def _list_sizes(stats: Stats) -> list[str]:
    """Returns what became of regions that differ only in sizes."""
    parts = []
    if stats.generalizations:
        parts.append(f"{stats.generalizations} compiled for any sizes")
    if stats.generalizations or stats.general_hits:
        saved = f" (about {format_duration(stats.general_saved_seconds)} saved)" if stats.general_saved_seconds else ""
        parts.append(f"{stats.general_hits} at further sizes without a compile{saved}")
    if stats.reused_sizes:
        parts.append(f"{stats.reused_sizes} at frequent sizes, compiled for that size")
    if stats.own_sizes:
        parts.append(_reasons(stats.own_sizes, "compiled for one size only"))
    return parts


def list_programs(run: Run) -> list[str]:
    """Returns what became of a run's programs, which Thunder makes of models; nothing if there were none."""
    stats, parts = run.stats, []
    if stats.programs_loaded:
        took = run.phases.loading_programs
        within = "" if took is None else f" in {format_duration(took)}"
        spared = f"which took {format_duration(stats.loaded_program_seconds)} to trace before"
        parts.append(f"{stats.programs_loaded} loaded{within}, {spared}")
    if stats.programs_made:
        parts.append(f"{stats.programs_made} traced and stored")
    if stats.programs_replayed:
        parts.append(f"{stats.programs_replayed} replayed from the program of another length")
    if stats.programs_filled:
        parts.append(f"{stats.programs_filled} filled in from programs of other lengths")
    if stats.passes_repeated:
        parts.append(_reasons(stats.passes_repeated, "replayed with Thunder's passes repeated"))
    if stats.programs_interpreted:
        parts.append(_reasons(stats.programs_interpreted, "traced again at another length"))
    if stats.programs_refused:
        parts.append(_reasons(stats.programs_refused, "traced and not stored, or found in the store and not used"))
    return parts


def _list_graphs(stats: Stats) -> list[str]:
    """Returns what became of a run's programs as CUDA graphs; nothing if none were asked for."""
    parts = []
    if stats.captures:
        parts.append(f"{stats.captures} captured, replayed {format_count(stats.graph_replays, 'time', 'times')}")
    if stats.not_captured:
        parts.append(_reasons(stats.not_captured, "not captured or not replayed"))
    return parts


def _time(phases: Mapping[str, float]) -> str:
    longest = sorted(phases.items(), key=lambda item: -item[1])
    parts = [f"{PHASES[name].title} {format_duration(seconds)}" for name, seconds in longest[:_MOST_PHASES]]
    rest = sum(seconds for _, seconds in longest[_MOST_PHASES:])
    return ", ".join([*parts, *([f"other phases {format_duration(rest)}"] if rest else [])])


def _reasons(counts: Mapping[str, int], what: str) -> str:
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{reason.removeprefix('cannot be stored: ')} ({count})" for reason, count in most[:_MOST_REASONS]]
    if len(most) > _MOST_REASONS:
        parts.append(f"{len(most) - _MOST_REASONS} other reasons")
    return f"{sum(counts.values())} {what}: {', '.join(parts)}"


def _executables(count: int) -> str:
    return format_count(count, "executable", "executables")


def _in(count: int, seconds: float) -> str:
    return f" in {format_duration(seconds)}" if count else ""


def _wrap(label: str, text: str) -> str:
    # What is aligned, such as a command and what it does, stays so: only text that is too long is broken.
    line = f"{label:<{_LABEL}}{text}"
    return line if len(line) <= _width() else wrap(line, _width(), _LABEL)


def print_counts(run: Run, lifetime: Lifetime) -> None:
    """Prints a run and all its counts, one a line."""
    stats = run.stats
    pairs = [
        ("run", run.id),
        ("name", escape_controls(run.name)),
        ("command", escape_controls(run.command)),
        ("started", format_time(run.started)),
        ("last saved", f"{format_time(run.updated)}{', at its end' if run.ended else ''}"),
        ("pid", str(run.pid)),
        *([("not listed", str(run.unrecorded))] if run.unrecorded else []),
        ("regions", str(stats.regions)),
        ("templates", str(stats.templates)),
        ("hits", str(stats.hits)),
        ("misses", str(stats.misses)),
        *_reason_pairs("operations not given to Thunder", find_not_given(stats.bypasses), optional=True),
        *_reason_pairs("bypasses", find_bypasses(stats.bypasses)),
        ("compiles", str(stats.compiles)),
        ("compile seconds", format_seconds(stats.compile_seconds)),
        *((f"one-time start of {name}", format_seconds(took)) for name, took in stats.start_seconds.items()),
        ("loads", str(stats.loads)),
        ("load seconds", format_seconds(stats.load_seconds)),
        ("compile seconds of what was loaded", format_seconds(stats.loaded_compile_seconds)),
        ("compiles for any sizes", str(stats.generalizations)),
        ("further sizes without a compile", str(stats.general_hits)),
        ("compile seconds of these", f"{format_seconds(stats.general_saved_seconds)} (an estimate)"),
        ("compiles for a frequent size", str(stats.reused_sizes)),
        *_reason_pairs("compiled for one size only", stats.own_sizes),
        *_reason_pairs("executables not stored", stats.unkept),
        *_reason_pairs("operations left out of programs", stats.taken_out, optional=True),
        ("programs loaded", str(stats.programs_loaded)),
        ("programs traced and stored", str(stats.programs_made)),
        *_reason_pairs("programs not stored or not used", stats.programs_refused),
        ("programs replayed from another length", str(stats.programs_replayed)),
        ("programs filled in from other lengths", str(stats.programs_filled)),
        *_reason_pairs("programs whose passes were repeated", stats.passes_repeated),
        *_reason_pairs("programs traced again at a length", stats.programs_interpreted),
        ("seconds on programs", format_seconds(sum(stats.program_seconds.values()))),
        *((f"  {escape_controls(part)}", format_seconds(took)) for part, took in stats.program_seconds.items()),
        ("tracing seconds of what was loaded", format_seconds(stats.loaded_program_seconds)),
        ("CUDA graphs captured", str(stats.captures)),
        ("CUDA graph replays", str(stats.graph_replays)),
        ("gradients copied from CUDA graphs", str(stats.gradients_copied)),
        *_reason_pairs("not captured in CUDA graphs", stats.not_captured),
        ("saved seconds", f"{format_seconds(stats.saved_seconds)} (an estimate)"),
        ("verified", str(stats.verified)),
        ("verify compiles", str(stats.verify_compiles)),
        ("verify compile seconds", format_seconds(stats.verify_compile_seconds)),
        ("canonicalize seconds", format_seconds(stats.canonicalize_seconds)),
        *_phase_pairs(run),
        ("saved seconds of all runs", f"{format_seconds(lifetime.saved_seconds)} (an estimate)"),
    ]
    click.echo(format_pairs(pairs))


def _reason_pairs(title: str, counts: Mapping[str, int], *, optional: bool = False) -> Iterator[tuple[str, str]]:
    """Yields a count and its reasons; nothing if it is optional and 0."""
    if counts or not optional:
        yield title, str(sum(counts.values()))
    yield from ((f"  {escape_controls(reason)}", str(count)) for reason, count in sorted(counts.items()))


def _phase_pairs(run: Run) -> list[tuple[str, str]]:
    """Returns where the time went, if that was measured."""
    phases = run.phases.to_dict()
    named = [(f"  {PHASES[name].title}", format_seconds(seconds)) for name, seconds in phases.items()]
    return [("seconds in all phases", format_seconds(sum(phases.values()))), *named] if phases else []


def print_runs(runs: Sequence[Run]) -> None:
    """Prints a table of runs that fits the terminal, and 80 columns elsewhere."""
    rows = [(run.id[:_ID_DIGITS], format_short_name(run), *_numbers(run)) for run in runs]
    print_table(_RUN_COLUMNS, rows, most=_WIDTH)


def _numbers(run: Run) -> tuple[str, ...]:
    stats = run.stats
    return (str(stats.regions), str(stats.compiles), str(stats.loads), _format_signed(stats.saved_seconds))


def _format_signed(seconds: float) -> str:
    return f"-{format_duration(-seconds)}" if seconds < 0 else format_duration(seconds)
