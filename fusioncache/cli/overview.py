"""The commands stats and ls: the counts of runs, and lists of templates, executables, programs and families."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from fusioncache.cli.console import (
    Column,
    count_columns,
    directory_option,
    encode_fields,
    format_cell,
    format_pairs,
    format_table,
    json_option,
    print_json,
    run_option,
    say,
    shorten,
    shorten_id,
    wrap,
)
from fusioncache.cli.things import LISTS, StoredKind, find_record, format_lengths, list_stored, measure_store, pick_run
from fusioncache.humanize import (
    describe_savings,
    escape_controls,
    format_age,
    format_arities,
    format_bytes,
    format_count,
    format_duration,
    format_seconds,
    format_time,
)
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.observations import PHASES, Lifetime, Run
from fusioncache.observe.record.stats import Stats, find_bypasses, find_not_given, list_counts

_PROGRAMS = {
    "programs_made": "traced and stored",
    "programs_replayed": "replayed from another length",
    "programs_filled": "filled in from other lengths",
    "passes_repeated": "whose passes were repeated",
    "programs_interpreted": "traced again at a length",
    "programs_refused": "not stored or not used",
}
_SIZES = {
    "generalizations": "compiles for any sizes",
    "general_hits": "ran with code for any sizes",
    "own_sizes": "compiled for one size only",
}
_GRAPHS = {
    "captures": "captured",
    "graph_replays": "CUDA graph replays",
    "not_captured": "not captured in CUDA graphs",
}
"""The phrases for counts of programs, sizes and CUDA graphs behind these labels, by field of ``Stats``."""
_WIDTH = 80
_LABEL = 12
_MOST_PHASES = 4
_MOST_REASONS = 3
_ID_DIGITS = 8
_NEXT_IN_STORE = ("fusioncache ls --store       the executables", "fusioncache ls --programs    the programs")

type Lines = Iterator[tuple[str, str]]
"""Labels and texts."""


@click.command()
@run_option
@click.option("--runs", "all_runs", is_flag=True, help="List all recorded runs instead, newest first.")
@click.option("-v", "--verbose", is_flag=True, help="Print every count of stats(), one per line.")
@json_option
def stats(run_id: str | None, all_runs: bool, verbose: bool, as_json: bool) -> None:
    """Show what a run shared, compiled, loaded and saved.

    It is the newest run by default. --run names a run by the start of its ID, its script, a part of its name (script,
    model or time), or 'last'. A script means its newest run, and a part must be in the name of one run only. The record
    has the counts of a run half a second after the first call of a template. The run may thus still be running, or was
    killed.

    The saved seconds are an estimate. They are the additional seconds of compiling regions and tracing programs without
    fusioncache, minus its own seconds for this. A negative number is a loss. A hit saves the seconds that Thunder alone
    needs for a further equal region. A loaded executable or program saves the seconds of making it. The one-time start
    of a compiler is separate: it is part of no compile, and Thunder alone needs it, too. All runs include those removed
    from the record.

    \b
    Examples:
        fusioncache stats
        fusioncache stats --runs
        fusioncache stats --run train.py -v
        fusioncache stats --run 5f3a --json
    """
    if all_runs and (run_id is not None or verbose):
        raise click.UsageError("--runs lists all runs, --run and --verbose are about one: give only one of them.")
    record, usage = find_record(run_id), measure_store()
    lifetime = record.lifetime() if record else None
    runs = () if record is None else record.runs() if all_runs else (pick_run(record, run_id),)
    if as_json:
        about = {"runs": [*map(encode_run, runs)]} if all_runs else encode_run(runs[0]) if runs else {"id": None}
        print_json({**about, "lifetime": lifetime, "store": usage})
    elif lifetime is None:
        click.echo("No run is on record here. The store has what other runs compiled:")
        _print_sections(_describe_store(usage), _label("next", _NEXT_IN_STORE))
    elif all_runs:
        click.echo(format_table(_RUN_COLUMNS, map(encode_run, runs)))
    elif verbose:
        click.echo(format_pairs(_list_counts(runs[0], lifetime)))
    else:
        click.echo(_write_headline(runs[0]))
        _print_sections(_describe_run(runs[0]), _describe_surroundings(lifetime, usage), _suggest(runs[0].stats))


def _format_saved(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{format_duration(abs(seconds))}"


_RUN_COLUMNS = (
    Column("id", lambda id_: str(id_[:_ID_DIGITS])),
    Column("run", key="name", cut=True),
    *(Column(title, number=True) for title in ("regions", "compiles", "loads")),
    Column("saved", _format_saved, key="saved_seconds", number=True),
)


def encode_run(run: Run) -> dict[str, Any]:
    """Returns a run with its counts. ``started`` and ``updated`` are in seconds since the epoch."""
    head = {"id": run.id, "name": run.name, "started": run.started, "updated": run.updated, "ended": run.ended}
    what = {"pid": run.pid, "command": run.command, "models": run.models}
    return {**head, **what, **encode_fields(run.stats), "phases": run.phases.to_dict(), "unrecorded": run.unrecorded}


def format_run_label(run: Run) -> str:
    """Returns a run's name and the start of its ID, for a line of 80 columns with room for a word before them."""
    id_ = run.id[:_ID_DIGITS]
    return f"{shorten(escape_controls(run.name), _find_width() - _LABEL - len(id_) - 8)}  (run {id_})"


def _find_width() -> int:
    """Returns the width of lines: the terminal's, and at most 80 columns."""
    return min(count_columns() or _WIDTH, _WIDTH)


def _print_sections(*sections: Iterable[tuple[str, str]]) -> None:
    """Prints labelled lines in 80 columns. Only lines that are too long are wrapped, so aligned text stays aligned."""
    for section in sections:
        lines = [f"{label:<{_LABEL}}{escape_controls(text)}" for label, text in section]
        width = _find_width()
        click.echo("\n" + "\n".join(line if len(line) <= width else wrap(line, width, _LABEL) for line in lines))


def _write_headline(run: Run) -> str:
    lasted = format_duration(max(run.updated - run.started, 0.0))
    state = f"It ended after {lasted}." if run.ended else f"It is still running, or was killed after {lasted}."
    return f"{format_run_label(run)}\n{state}"


def _describe_run(run: Run) -> Lines:
    stats = run.stats
    if stats.regions:
        shared = f"{stats.hits} ({stats.hits / stats.regions:.0%}) shared"
        yield "regions", f"{stats.regions}, of {format_count(stats.templates, 'template', 'templates')}; {shared}"
    else:
        yield "regions", f"0. {run.no_regions_message}"
    yield "compiled", _format_executables(stats.compiles, stats.compile_seconds)
    for name, seconds in stats.start_seconds.items():
        yield "started", f"one-time start of {name}: {format_duration(seconds)}"
    before = f", which took {format_duration(stats.loaded_compile_seconds)} to compile before" if stats.loads else ""
    yield "loaded", f"{_format_executables(stats.loads, stats.load_seconds)}{before}"
    yield from _label("remote", _list_pulls(stats))
    yield from _label("sizes", _list_parts(stats, _SIZES))
    yield from _label("programs", list_programs(run))
    yield from _label("CUDA graphs", _list_parts(stats, _GRAPHS))
    if stats.saved_seconds < 0:
        yield "cost", f"about {format_duration(-stats.saved_seconds)}: fusioncache itself took longer than it saved"
    else:
        yield "saved", f"about {format_duration(stats.saved_seconds)}" if stats.saved_seconds else "nothing"
    if phases := run.phases.to_dict():
        yield "time", _format_phases(phases)
    if not_given := find_not_given(stats.bypasses):
        what = "operation" if sum(not_given.values()) == 1 else "operations"
        yield "Dynamo", _format_reasons(not_given, f"{what} not given to Thunder")
    if stats.regions and (bypasses := find_bypasses(stats.bypasses)):
        yield "bypassed", _format_reasons(bypasses, "left as Thunder made them")
    if stats.unkept:
        yield "not stored", _format_reasons(stats.unkept, "compiled by each process")
    if run.missing:
        yield "not listed", run.missing
    if stats.verified or stats.verify_compiles:
        pairs = format_count(stats.verified, "region and layout", "regions and layouts")
        own = f"{format_count(stats.verify_compiles, 'compile', 'compiles')} only for that"
        took = f" in {format_duration(stats.verify_compile_seconds)}" if stats.verify_compiles else ""
        yield "verified", f"{pairs} computed what they compute when compiled alone; {own}{took}"


def _describe_surroundings(lifetime: Lifetime, usage: Mapping[str, Any] | None) -> Lines:
    shared = f"{lifetime.hits / lifetime.regions:.0%} of {lifetime.regions} regions shared" if lifetime.regions else ""
    executables = lifetime.loads + lifetime.compiles
    loaded = f"{lifetime.loads / executables:.0%} of {executables} executables loaded" if executables else ""
    saved = describe_savings(lifetime.saved_seconds) if lifetime.saved_seconds else ""
    since = f"{format_count(lifetime.runs, 'run', 'runs')} since {format_time(lifetime.since)[:10]}"
    yield "all runs", ", ".join(filter(None, (since, shared, loaded, saved)))
    yield from _describe_store(usage)


def _describe_store(usage: Mapping[str, Any] | None) -> Lines:
    if usage is None:
        yield "store", "none yet"
    else:
        programs = f" and {format_count(usage['programs'], 'program', 'programs')}" if usage["programs"] else ""
        counts = f"{_format_executables(usage['executables'])}{programs}"
        yield "store", f"{counts}, {format_bytes(usage['bytes'])}, in {usage['path']}"


def _suggest(stats: Stats) -> Lines:
    commands = ["fusioncache explain          why templates were new"] if stats.misses and stats.compiles else []
    commands += ["fusioncache report --open    the run as a map of the model"] if stats.regions else []
    return _label("next", [*commands, "fusioncache stats --verbose  every count"])


def _label(label: str, parts: Iterable[str]) -> Lines:
    """Yields a line for each part, the first one with the label."""
    yield from ((label if number == 0 else "", part) for number, part in enumerate(parts))


def list_programs(run: Run) -> list[str]:
    """Returns the outcomes of a run's programs with their counts, as texts; none if there were no programs."""
    stats, took = run.stats, run.phases.loading_programs
    within = "" if took is None else f" in {format_duration(took)}"
    spared = f"which took {format_duration(stats.loaded_program_seconds)} to trace before"
    loaded = [f"{stats.programs_loaded} loaded{within}, {spared}"] if stats.programs_loaded else []
    return [*loaded, *_list_parts(stats, _PROGRAMS)]


def _list_pulls(stats: Stats) -> Iterator[str]:
    """Yields texts about entries from other machines: counts by signer, saved seconds, and reasons for refusals."""
    for signer, number in stats.pulled.items():
        yield f"{format_count(number, 'entry', 'entries')} came, signed by {signer}"
    if stats.pulled_seconds:
        yield f"loaded what took other machines {format_duration(stats.pulled_seconds)} to make"
    for reason, number in stats.pull_refused.items():
        yield f"not taken ({number}): {reason}"


def _list_parts(stats: Stats, names: Mapping[str, str]) -> Iterator[str]:
    """Yields each count that is not 0 with its phrase, and its reasons if it has some."""
    for name, what in names.items():
        if value := getattr(stats, name):
            yield _format_reasons(value, what) if isinstance(value, Mapping) else f"{value} {what}"


def _format_phases(phases: Mapping[str, float]) -> str:
    longest = sorted(phases.items(), key=lambda item: -item[1])
    parts = [f"{PHASES[name].title} {format_duration(seconds)}" for name, seconds in longest[:_MOST_PHASES]]
    rest = sum(seconds for _, seconds in longest[_MOST_PHASES:])
    return ", ".join([*parts, *([f"other phases {format_duration(rest)}"] if rest else [])])


def _format_reasons(counts: Mapping[str, int], what: str) -> str:
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{reason.removeprefix('cannot be stored: ')} ({count})" for reason, count in most[:_MOST_REASONS]]
    if len(most) > _MOST_REASONS:
        parts.append(f"{len(most) - _MOST_REASONS} other reasons")
    return f"{sum(counts.values())} {what}: {', '.join(parts)}"


def _format_executables(count: int, seconds: float | None = None) -> str:
    took = f" in {format_duration(seconds)}" if count and seconds is not None else ""
    return f"{format_count(count, 'executable', 'executables')}{took}"


def _list_counts(run: Run, lifetime: Lifetime) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a run and all its counts, under the names that ``stats()`` uses."""
    yield from (("run", run.id), ("name", run.name), ("command", run.command), ("pid", run.pid))
    yield "started", format_time(run.started)
    yield "last saved", f"{format_time(run.updated)}{', at its end' if run.ended else ''}"
    yield "not listed", run.unrecorded or None
    counts = encode_fields(run.stats)
    counts["bypasses"] = find_bypasses(run.stats.bypasses)
    counts |= {"operations not given to Thunder": find_not_given(run.stats.bypasses)}
    counts |= {"seconds in all phases": {PHASES[name].title: took for name, took in run.phases.to_dict().items()}}
    counts |= {"saved seconds of all runs": lifetime.saved_seconds}
    yield from list_counts(counts)


_SORTED_BY = {"seconds": "compile_seconds", "regions": "regions", "hits": "hits", "name": "name", "size": "ops"}
"""The fields by which templates can be sorted."""
_LISTS: Mapping[str, StoredKind] = {"--store": "executable", "--programs": "program", "--families": "family"}
"""The kind of entries that each option lists."""


def _count(values: Sequence[Any] | None) -> str:
    return "damaged" if values is None else str(len(values))


def _format_lengths(lengths: Sequence[tuple[int, ...]] | None) -> str:
    return "damaged" if lengths is None else format_cell(format_lengths(lengths))


def _format_age(since: float) -> str:
    return format_age(time.time() - since)


_ID, _NAME = Column("id", key="digest", id=True), Column("name", cut=True)
_SECONDS = Column("seconds", format_seconds, number=True)
_SIZE = Column("size", format_bytes, number=True)
_TEMPLATE_COLUMNS = (
    _ID,
    _NAME,
    Column("ops", number=True, rank=2),
    Column("regions", number=True),
    Column("hits", number=True),
    Column("arities", format_arities, cut=True, rank=1),
    Column("compiles", number=True, rank=3),
    Column("seconds", format_seconds, key="compile_seconds", number=True),
)
_STORED_COLUMNS: Mapping[StoredKind, tuple[Column, ...]] = {
    "executable": (
        _ID,
        _NAME,
        Column("backend"),
        _SIZE,
        Column("age", _format_age, "created", number=True, rank=1),
        _SECONDS,
        Column("stored", lambda reason: "no" if reason else "yes", key="refused"),
    ),
    "program": (
        Column("id"),
        _NAME,
        Column("inputs", cut=True, rank=2),
        Column("templates", _count, number=True, rank=1),
        _SIZE,
        Column("age", _format_age, "created", number=True, rank=4),
        Column("used", _format_age, number=True, rank=3),
        _SECONDS,
    ),
    "family": (
        Column("id"),
        _NAME,
        Column("lengths", _format_lengths, cut=True),
        Column("guards", _count, number=True, rank=1),
        _SIZE,
        Column("age", _format_age, "created", number=True, rank=3),
        Column("used", _format_age, number=True, rank=2),
    ),
}


@click.command()
@run_option
@click.option("--store", is_flag=True, help="List the executables of the store instead, newest first.")
@click.option("--programs", is_flag=True, help="List the programs instead, newest first.")
@click.option("--families", is_flag=True, help="List the families instead, newest first.")
@click.option("--name", metavar="TEXT", help="Only items with TEXT in their name.")
@click.option("--text", metavar="TEXT", help="Only templates with TEXT in an ingredient of their key.")
@click.option(
    "--sort", type=click.Choice(list(_SORTED_BY)), help="Sort by this: the largest number or first name first."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="NUMBER", help="List at most this many.")
@directory_option
@json_option
def ls(run_id: str | None, directory: Path | None, as_json: bool, **only: Any) -> None:
    """List the templates of a run, or the entries of the store.

    It lists the templates of the newest run by default, sorted by compile time, the longest first. Arities are the
    numbers of terms in the residual chains (sums of any length) of its regions. 1-31 is each from 1 to 31, a slash
    separates the chains of one template, and - means no chain. The size of a template is its number of operations
    (ops).

    --store lists executables: the compiled code of a template for one layout of its inputs. A template with residual
    chains is compiled in parts, which other templates share. Some entries only note that an executable cannot be
    stored, with the reason below the list.

    --programs lists programs: the traces that Thunder makes of a model for one kind of input. A process that finds its
    program there does not trace. The seconds are those of tracing.

    --families lists families: programs that differ only in sizes. From them, a process fills in a program with other
    sizes.

    A terminal shows the start of each ID, which is enough for all commands, and names without their middle. A file, or
    a program such as cat, gets the full text. Every command that takes an ID takes these.

    \b
    Examples:
        fusioncache ls
        fusioncache ls --name residual --sort hits --limit 10
        fusioncache ls --text prims.exp
        fusioncache ls --run 5f3a --json
        fusioncache ls --store --sort size
        fusioncache ls --programs
        fusioncache ls --families
    """
    given = [option for option in _LISTS if only[option[2:]]]
    if directory and not given:
        raise click.UsageError("--dir names a store: use it with --store, --programs or --families.")
    if not given:
        record = find_record(run_id)
        if record is None:
            lists = "'fusioncache ls --store' lists the executables of the store, and 'ls --programs' its programs"
            raise click.ClickException(f"no run is on record here: {lists}")
        _list_templates(record, run_id, only, as_json=as_json)
    else:
        _refuse(given, run_id, only)
        _list_stored(_LISTS[given[0]], directory, only, as_json=as_json)


def _list_stored(kind: StoredKind, directory: Path | None, only: Mapping[str, Any], *, as_json: bool) -> None:
    path, stored = list_stored(directory, kind)
    rows = [one.to_dict() for one in _select(stored, only, only["sort"])]
    if as_json:
        print_json({"store": str(path), LISTS[kind][0]: rows})
    else:
        _print_stored(kind, rows)
    if not rows:
        say(f"{path} has {len(stored) or 'no'} {LISTS[kind][0]}{'; none matches' if stored else ''}.")


def _select(found: Sequence[Any], only: Mapping[str, Any], field: str | None) -> list[Any]:
    """Returns the items whose names contain a text, sorted by a field: the largest number first, or the first name."""
    named = [one for one in found if (only["name"] or "") in one.name]
    ordered = sorted(named, key=attrgetter(field), reverse=field != "name") if field else named
    return ordered[: only["limit"]]


def _refuse(given: Sequence[str], run_id: str | None, only: Mapping[str, Any]) -> None:
    """Checks that all options apply to a list of the store's entries.

    Raises:
        click.UsageError: if one does not.
    """
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are lists: give one of them.")
    kind, sort = _LISTS[given[0]], only["sort"]
    is_known = sort in ((None, "name", "size") if kind == "family" else (None, "name", "size", "seconds"))
    about = {"--run": run_id, "--text": only["text"], f"--sort {sort}": None if is_known else sort}
    for option in (option for option, value in about.items() if value is not None):
        raise click.UsageError(f"{option} is not for {LISTS[kind][0]}: leave it out.")


def _list_templates(record: RecordReader, run_id: str | None, only: Mapping[str, Any], *, as_json: bool) -> None:
    run = pick_run(record, run_id)
    text = only["text"]
    all_ = record.templates(run.id, texts=text is not None)
    fitting = [each for each in all_ if text is None or any(text in part for _, part in each.ingredients)]
    found = _select(fitting, only, _SORTED_BY[only["sort"] or "seconds"])
    if as_json:
        print_json({"run": run.id, "templates": found})
    else:
        click.echo(format_table(_TEMPLATE_COLUMNS, [encode_fields(template) for template in found]))
    if not found and all_:
        say(f"None of the {len(all_)} templates of run {shorten_id(run.id)} matches.")
    elif not found:
        say(f"Run {shorten_id(run.id)} has no templates: 'fusioncache stats' says what was bypassed and why.")


def _print_stored(kind: StoredKind, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a table of stored entries, and below it why some executables cannot be stored."""
    reasons = Counter(row["refused"] for row in rows if row.get("refused"))
    columns = _STORED_COLUMNS[kind] if reasons or kind != "executable" else _STORED_COLUMNS[kind][:-1]
    click.echo(format_table(columns, rows))
    width, lead = count_columns(), "\n"
    for reason, number in reasons.most_common():
        why = f"cannot be stored, so each process compiles them: {escape_controls(reason)}"
        click.echo(lead + wrap(f"{number} of {len(rows)} {why}", width))
        lead = ""
