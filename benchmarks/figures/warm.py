"""Tables of second processes, many ranks, models with stored programs, a large store and commands on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from benchmarks.figures.markdown import format_seconds, make_table
from fusioncache.observe.record.observations import PHASES

Result = Mapping[str, Any]
Point = Mapping[str, Any]

_WAYS = {"nothing": "nothing", "kernel_db": "nvFuser's kernels (`kernel_db`)", "store": "fusioncache's store"}
_LOADED = ("programs_loaded", "traces", "compiles", "loads")
_STAGES = {
    "segment": "which operations become one kernel",
    "schedule": "how each is laid out",
    "lower": "its CUDA is generated",
    "nvrtc": "that is compiled",
    "rest": "rest, execution included",
}


def tabulate_starts(result: Result) -> str:
    """Shows cold and warm processes, by what is kept."""
    columns = ("<kept", "<process", "first step", "compiling", "loading", "compiles", "loads", "later step")
    return make_table(columns, map(_start_row, result["points"]))


def _start_row(point: Point) -> list[str]:
    spent, repeats = point["seconds"], point["repeats"]
    loading = f"{1e3 * spent['load']:.0f} ms" if spent["load"] else ""
    counts = [str(repeats[0][name]) for name in ("compiles", "loads")]
    later = f"{median(one['step_ms'] for one in repeats):.2f} ms"
    times = [f"{format_seconds(spent['first_step'])} s", f"{format_seconds(spent['compile'])} s", loading]
    return [_WAYS[point["way"]], point["process"], *times, *counts, later]


def tabulate_profile(result: Result) -> str:
    """Shows where nvFuser's seconds go, by what is kept."""
    found = result["profile"]
    columns = [f"{_WAYS[each['way']]}, {each['process']}" for each in found]
    rows = ([name, *(_stage(each, stage) for each in found)] for stage, name in _STAGES.items())
    return make_table(("<seconds", *columns), rows)


def _stage(found: Point, stage: str) -> str:
    return format_seconds(found["seconds"][stage]) if found["seconds"] else "not called"


def tabulate_programs(*results: Result) -> str:
    """Shows every model in a second process, with its stored programs."""
    columns = ("<model", "<way", "<backend", "programs", "loaded", "traces", "compiles", "loads", "bitwise")
    return make_table(columns, [_program_row(point) for result in results for point in result["points"]])


def _program_row(point: Point) -> list[str]:
    if "tensors" not in point:
        return [point["model"], "", point["backend"], *[""] * 5, "failed"]
    second = point["second"]
    counts = [str(point["first"].get("traces", 0)), *(str(second.get(name, 0)) for name in _LOADED)]
    if point["backend"] == "eager":
        counts[-2:] = "", ""  # it has nothing to compile, and so nothing to load
    alike = f"{point['tensors'] - len(point['differing']['second'])} of {point['tensors']}"
    return [point["model"], point["way"], point["backend"], *counts, alike]


def tabulate_parts(*results: Result) -> str:
    """Shows what the first step of a second process consists of, beside those that keep less or otherwise."""
    columns = ("<model", "<way", "<process", "first step", "tracing", *_PARTS, "rest", "traces")
    return make_table(columns, [row for result in results for row in _parts_rows(result)])


_PARTS = ("key", "reads", "load", "build", "guards", "kernels")


def _parts_rows(result: Result) -> list[list[str]]:
    options = result["environment"]["options"]
    size = "Llama-2-7b" if options["width"] == "real" else f"narrow {options['model']}"
    return [_parts_row(point, size) for point in result["points"] if not point.get("error", "").startswith("not run")]


def _parts_row(point: Point, size: str) -> list[str]:
    head = [f"{size}, {point['layers']} layers", point["way"], point["process"]]
    if "seconds" not in point:
        return [*head, "failed", *[""] * (len(_PARTS) + 3)]
    seconds, first = point["seconds"], point["repeats"][0]
    parts = [f"{1e3 * seconds[part]:.0f} ms" if seconds.get(part) else "" for part in _PARTS]
    rest = seconds["rest"] + seconds.get("compile", 0.0)
    times = [f"{format_seconds(seconds['total'])} s", f"{format_seconds(seconds['trace'])} s"]
    traces = str(first["counts"]["traces"]) if "counts" in first else ""
    return [*head, *times, *parts, f"{format_seconds(rest)} s", traces]


def tabulate_ahead(result: Result) -> str:
    """Shows how long it takes to compile ahead, by how many processes do."""
    columns = ("processes", "from start to end", "compiling", "compiled")
    return make_table(columns, map(_ahead_row, result["points"]))


def _ahead_row(point: Point) -> list[str]:
    times = [f"{format_seconds(point['seconds'][part])} s" for part in ("whole", "compiling")]
    return [str(point["jobs"]), *times, str(point["compiled"])]


def tabulate_ranks(result: Result) -> str:
    """Shows jobs of several ranks."""
    columns = ("ranks", "<cache directories", "first step", "to one rank's", "compiles", "by rank", "loads")
    return make_table(columns, (_ranks_row(point, result["points"][0]) for point in result["points"]))


def _ranks_row(point: Point, one: Point) -> list[str]:
    each = ", ".join(str(rank["compiles"]) for rank in point["jobs"][0])
    directories = {"together": "one for all", "separate": "one for each"}[point["directories"]]
    times = [f"{format_seconds(point['first_step'])} s", f"{point['first_step'] / one['first_step']:.2f}"]
    return [str(point["ranks"]), directories, *times, f"{point['compiles']:g}", each, f"{point['loads']:g}"]


def tabulate_store(result: Result) -> str:
    """Shows a store of many templates: milliseconds, and bytes on disk."""
    rows = [[name, f"{value:.2f} ms"] for name, value in result["milliseconds"].items()]
    rows += [[name, f"{value / 1e6:.0f} MB"] for name, value in result["bytes"].items()]
    count = result["environment"]["options"]["templates"]
    return make_table((f"<{count:,} templates", "figure"), rows)


def tabulate_commands(result: Result) -> str:
    """Shows commands on many templates: milliseconds of a whole process."""
    rows = ([name, f"{value:.0f} ms"] for name, value in result["milliseconds"].items())
    return make_table((f"<{result['environment']['options']['templates']:,} templates", "time"), rows)


_PLAIN = "thunder"


def tabulate_cpu_starts(*results: Result) -> str:
    """Shows the first and the second start on a CPU, in seconds of processors, and what the first is to Thunder's."""
    points = [point for result in results for point in result["points"]]
    firsts = {(point["model"], point["way"]): point for point in points if point["start"] == "first"}
    seconds = {(point["model"], point["way"]): point for point in points if point["start"] == "second"}
    columns = ("<model", "<way", "first start", "of it others", "to Thunder's", "second start", "later step")
    rows = (
        _cpu_row(point, seconds[identity], firsts[point["model"], _PLAIN])
        for identity, point in firsts.items()
        if identity in seconds
    )
    return make_table(columns, rows)


def tabulate_hugging_face(result: Result) -> str:
    """Shows CPU seconds of first steps through thunderfx, with and without programs."""
    columns = ("<model", "parts for Thunder", "first", "without programs", "second", "without programs", "ratio")
    return make_table(columns, [_list_hugging_face(point) for point in result["points"]])


def _list_hugging_face(point: Point) -> list[str]:
    if "error" in point:
        return [point["model"], "failed", *[""] * 5]
    programs, templates = point["programs"], point["templates"]
    last = programs["second"]
    parts = f"{last['parts_with_thunder']} of {last['parts']}"
    pairs = [(each["first"], each["second"]) for each in (programs, templates)]
    (first, second), (first_without, second_without) = [[one["cpu_seconds"] for one in pair] for pair in pairs]
    times = [f"{format_seconds(value)} s" for value in (first, first_without, second, second_without)]
    return [point["model"], parts, *times, f"{second / second_without:.2f}"]


def tabulate_accounts(result: Result, process: str) -> str:
    """Shows the seconds of each phase of a first step, and how many operations Thunder was not given."""
    owners = dict.fromkeys(map(_owner_of, PHASES))
    columns = ("<model", "step", *owners, "operations not given to Thunder")
    points = [(point["model"], point["programs"][process]) for point in result["points"] if "error" not in point]
    return make_table(columns, [_list_account(model, point, owners) for model, point in points])


def _owner_of(phase: str) -> str:
    """Returns the column of a phase: what is not given to Thunder has one of its own."""
    return "other compilers" if phase == "other_compilers" else PHASES[phase].owner


def _list_account(model: str, point: Point, owners: Iterable[str]) -> list[str]:
    phases = point["phases"].items()
    times = [sum(seconds for name, seconds in phases if _owner_of(name) == owner) for owner in owners]
    cells = [f"{format_seconds(value)} s" for value in (point["wall_seconds"], *times)]
    return [model, *cells, f"{sum(point['not_given'].values()):,}"]


def tabulate_saved_seconds(result: Result) -> str:
    """Shows the seconds that were reported as saved, and the real difference."""
    columns = ("<model", "<process", "Thunder alone", "fusioncache", "difference", "reported", "<within 20%, or 0.5 s")
    rows = [
        [
            point["model"],
            point["comparison"],
            *(f"{point['seconds'][name]:.2f} s" for name in ("alone", "fusioncache", "real", "reported")),
            "yes" if point["agrees"] else "no",
        ]
        for point in result["points"]
    ]
    return make_table(columns, rows)


def _cpu_row(first: Point, second: Point, plain: Point) -> list[str]:
    if "error" in first or "error" in second:
        return [first["model"], first["way"], "failed", "", "", "", ""]
    total, others = _count_seconds(first), _count_seconds(second)
    times = [f"{format_seconds(value)} s" for value in (total, first["children_s"])]
    ratio = f"{total / _count_seconds(plain):.2f}"
    return [first["model"], first["way"], *times, ratio, f"{format_seconds(others)} s", f"{first['step_ms']:.2f} ms"]


def _count_seconds(point: Point) -> float:
    return float(point["own_s"] + point["children_s"])
