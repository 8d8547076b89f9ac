"""The command bench: how compile time grows with depth on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

import fusioncache

SCRIPT = Path(fusioncache.__file__).parents[1] / "benchmarks" / "compile_scaling.py"
"""Where it is in a checkout. It is not installed with the package."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE BENCHMARK]")
def bench(arguments: tuple[str, ...]) -> None:
    """Measure the time to a first step as models get deeper, with fusioncache and without.

    This is benchmarks/compile_scaling.py of the source, which is not installed with the package: it works in a
    checkout that was installed with pip install -e ".[bench]". It takes minutes. All arguments go to it.

    \b
    Examples:
        fusioncache bench
        fusioncache bench --model llama --layers 1,2,4,8 --json result.json
        fusioncache bench -- --help
    """
    if not SCRIPT.is_file():
        raise click.ClickException(
            "the benchmarks are part of the source and not of the installed package: clone fusioncache's repository, "
            'run pip install -e ".[bench]" there, and try again'
        )
    code = subprocess.run([sys.executable, str(SCRIPT), *arguments], check=False).returncode
    raise click.exceptions.Exit(code)
