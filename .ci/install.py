"""``pip install`` that says how far it is, for ``make setup``: ``python .ci/install.py ARGUMENT ...``.

On a terminal pip shows its own progress. A log gets a line for each large wheel, with what has come so far, and how it
ended. Of warnings that differ in names alone, as where one of several indexes lacks a package, the first is shown and
the others are counted. Nothing else that pip says on stderr is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from threading import Thread
from typing import IO

_WHEEL = re.compile(r"\s*Downloading .*?([^/\s]+?)-[^/\s]+ \((\d+(?:\.\d+)?) MB\)")
_LARGE = 50
_STEPS = {"Installing collected packages: ": "installing", "Successfully installed ": "installed"}
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"")


def progress(lines: Iterable[str]) -> Iterator[str]:
    """What a log shows of pip's output."""
    megabytes = 0.0
    for line in lines:
        if wheel := _WHEEL.match(line):
            megabytes += float(wheel[2])
            if float(wheel[2]) >= _LARGE:
                yield f"  {megabytes / 1000:4.1f} GB with {wheel[1]}"
        for start, step in _STEPS.items():
            if line.startswith(start):
                yield f"  {step} {len(line.removeprefix(start).split())} packages"


def first_of_each(lines: Iterable[str]) -> Iterator[str]:
    """All lines but the warnings that are like an earlier one; how many those are comes last."""
    seen: set[str] = set()
    repeated = 0
    for line in lines:
        shape = _NAMES.sub("", line)
        if line.startswith("WARNING: ") and shape in seen:
            repeated += 1
            continue
        seen.add(shape)
        yield line.rstrip("\n")
    if repeated:
        yield f"({repeated} more warnings like these)"


def _show(lines: Iterable[str], stream: IO[str]) -> None:
    for line in lines:
        print(line, file=stream, flush=True)


def main(arguments: list[str]) -> int:
    """Installs, and returns pip's status."""
    command = [sys.executable, "-m", "pip", "install", *arguments]
    stdout = None if sys.stdout.isatty() else subprocess.PIPE
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as pip:
        errors = Thread(target=_show, args=(first_of_each(pip.stderr or ()), sys.stderr))
        errors.start()
        _show(progress(pip.stdout or ()), sys.stdout)
        errors.join()
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
