"""Runs a function of the benchmarks in a fresh process with empty cache directories. The process runs this module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import IO, Any

import click

ROOT = Path(__file__).resolve().parents[2]
_CACHES = ("FUSIONCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR")
"""Variables with the cache directories of compilers. nvFuser's kernel database is in the temporary directory."""

_LINES_OF_LOG = 25


class ProcessFailed(click.ClickException):
    """A process left no result. A benchmark that does not catch this exits with the message and the log.

    Args:
        message: the reason.
        log: the end of the process's output.
    """

    def __init__(self, message: str, log: str):
        super().__init__(message)
        self.log = log

    def format_message(self) -> str:
        """Returns the message and the log, which click prints."""
        return f"{self.message}\n{self.log}"


def call(
    target: str | Path,
    argument: Any,
    *,
    caches: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    root: Path = ROOT,
    limit: float | None = None,
) -> Any:
    """Returns the result of a function in a process of its own. Argument and result are JSON.

    Args:
        target: the module and the name of the function, as in ``"package.module:function"``; a module that calls
            ``serve`` when it is run; or the file of such a module.
        argument: of the function.
        caches: the parent of the cache directories, which may exist from an earlier process; by default a temporary
            directory.
        environment: additional environment variables of the process.
        root: the working directory and first import path: this project, or an earlier state of it.
        limit: the seconds after which the process is ended.

    Raises:
        ProcessFailed: if the process raised or died, or was ended.
    """
    with TemporaryDirectory(prefix="fusioncache-benchmark-") as directory:
        answer, log = Path(directory, "answer.json"), Path(directory, "log")
        variables = {**environment_in(directory if caches is None else str(caches), root), **environment}
        # Without -P the folder of the file would be the first import path.
        what: tuple[str, ...] = ("-P", str(target)) if isinstance(target, Path) else ("-m", target)
        if isinstance(target, str) and ":" in target:
            what = ("-m", "benchmarks.common.processes", target)
        command = [sys.executable, *what, json.dumps(argument), str(answer)]
        with log.open("wb") as output:
            ending = _run(command, root, variables, output, limit)
        end = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES_OF_LOG:])
        if not answer.exists():
            raise ProcessFailed(ending, end)
        result = json.loads(answer.read_text())
        if "raised" in result:
            raise ProcessFailed(result["raised"], end)
        return result["value"]


def _run(command: list[str], root: Path, variables: Mapping[str, str], output: IO[bytes], limit: float | None) -> str:
    """Runs a process to its end, and returns a description of how it ended."""
    where: dict[str, Any] = {"cwd": root, "env": variables, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, **where, stdout=output, stderr=output, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"the process was ended after {limit:.0f} s"
    return _ending(done.returncode)


def serve(function: Any) -> None:
    """Runs a function on the argument of ``call`` and writes the result, in a module that runs as a script."""
    argument, answer = json.loads(sys.argv[1]), Path(sys.argv[2])
    try:
        value = function(argument)
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        answer.write_text(json.dumps({"raised": f"{type(error).__name__}: {first_line}"}))
        raise
    answer.write_text(json.dumps({"value": value}))


def find_function(target: str) -> Any:
    """Returns the function of ``"package.module:function"``."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def environment_in(directory: str, root: Path = ROOT) -> dict[str, str]:
    """Returns the environment of a process with its caches in this directory, and makes the folders of the caches."""
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for variable in _CACHES:
        environment[variable] = str(Path(directory, variable.lower()))
        Path(environment[variable]).mkdir(exist_ok=True)
    return environment


def print_progress(text: str) -> None:
    """Prints progress to standard error: a line, or the beginning of one."""
    click.echo(text, err=True, nl=False)


def _ending(code: int) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code} and left no result"


if __name__ == "__main__":
    answering = sys.argv.pop(1)
    serve(lambda argument: find_function(answering)(argument))
