"""Runs programs that are hard to trace without and with shortcuts, and says what can be told apart.

Exits with 1 if anything can. ``--record`` writes down what comes of Thunder's own tracing, so that the tests need not
trace without shortcuts what comes out the same.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:1] = [str(_ROOT), str(_ROOT / "tests" / "helpers")]

from benchmarks.common.environment import describe
from benchmarks.equality.traces import KINDS, name_sets, recording
from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING
from hostile_programs import PROGRAMS, observe
from hostile_programs.record import find_difference, write_record, write_sources

_SETS = dict(name_sets(KINDS, tuple(TRACING)))


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("-k", "pattern", default="", help="Only programs with this in their names.")
@click.option("--sets", default="all", help="Of groups of shortcuts, as in 'only frames,without tags'; or 'every'.")
@click.option("--record", is_flag=True, help="Write down what comes of Thunder's own tracing.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the result.")
def main(pattern: str, sets: str, record: bool, json_file: Path | None) -> None:
    gc.set_threshold(100_000, 50, 50)
    sys.setswitchinterval(1e-5)  # Thunder's interpreter waits for other threads in busy loops
    warnings.simplefilter("ignore")
    chosen = list(_SETS) if sets == "every" else [name for name in sets.split(",") if name]
    programs = [name for name in PROGRAMS if pattern in name]
    found: dict[str, dict[str, Any]] = {}
    for name, own, differing, seconds in _compare(programs, chosen):
        calls = sum(fact.endswith(", cache") for fact in own)
        errors = sum(fact.endswith(", error") for fact in own)
        found[name] = {"calls": calls, "errors": errors, "facts": len(own), "differing": differing}
        click.echo(f"{name}: {calls} calls, {errors} of them raise, {seconds:.1f} s")
        for each, difference in differing.items():
            click.echo(f"    {each}: {difference}")
        if record:
            write_record({name: own})
    if record and not pattern:
        write_sources()
    if json_file:
        result = {"environment": describe(), "sets": chosen, "programs": found}
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(each["differing"] for each in found.values()))


def _compare(programs: list[str], sets: list[str]) -> Iterator[tuple[str, dict[str, str], dict[str, str], float]]:
    """Yields each program's name, the facts of Thunder's own tracing, differences by set, and the processor's seconds."""
    for name in programs:
        start = time.process_time()
        own, differing = observe(PROGRAMS[name]), {}
        seconds = time.process_time() - start
        for each in sets:
            tracing.install(_SETS[each])
            try:
                with recording():
                    difference = find_difference(own, observe(PROGRAMS[name]))
            finally:
                tracing.uninstall()
            if difference:
                differing[each] = difference
        yield name, own, differing, seconds


if __name__ == "__main__":
    main()
