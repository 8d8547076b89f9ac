"""Runs programs that are hard to trace without and with shortcuts, and writes down what Thunder's own tracing comes to.

Exits with 1 if anything can be told apart.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import click

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:1] = [str(_ROOT), str(_ROOT / "tests" / "helpers")]

from benchmarks.equality.traces import KINDS, name_sets, recording
from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING
from hostile_programs import PROGRAMS, observe
from hostile_programs.record import digest, find_difference, write_record

_SETS = dict(name_sets(KINDS, tuple(TRACING)))


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--sets", default="all", help="Of groups of shortcuts, as in 'only frames,without tags'; or 'every'.")
def main(sets: str) -> None:
    sys.setswitchinterval(1e-5)  # Thunder's interpreter waits for other threads in busy loops
    warnings.simplefilter("ignore")
    found, failed = {}, False
    for name, program in PROGRAMS.items():
        own = observe(program)
        found[name] = digest(own)
        for each in _SETS if sets == "every" else filter(None, sets.split(",")):
            tracing.install(_SETS[each])
            with recording():
                difference = find_difference(own, observe(program))
            tracing.uninstall()
            if difference:
                failed = True
                click.echo(f"{name}, {each}: {difference}")
    write_record(found)
    sys.exit(failed)


if __name__ == "__main__":
    main()
