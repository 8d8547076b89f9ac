"""Processes that start in a tenth of a second: forks of one that has imported torch, Thunder and fusioncache.

It has done nothing else. For tests that need what a process has of its own: caches, patches, counts. What depends on
the interpreter's start, the order of imports, a seed of hashes or a variable that a library reads at import needs a
process of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from subprocess import CompletedProcess
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from repository import HELPERS, ROOT, import_path

if TYPE_CHECKING:
    import pytest


def use(monkeypatch: pytest.MonkeyPatch, shortcuts: bool = False) -> None:
    """Lets the benchmarks' processes start so in this test. With shortcuts Thunder traces faster there, to the same."""
    from benchmarks.common import processes

    stand_in = SimpleNamespace(
        run=partial(run, shortcuts=shortcuts), DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(processes, "subprocess", stand_in)


def run(command: Sequence[str], *, shortcuts: bool = False, **options: Any) -> CompletedProcess[Any]:
    """What ``subprocess.run`` does, for ``[sys.executable, "-m", module, *arguments]`` and the options asserted below.

    The output is one file. With ``shortcuts`` Thunder traces faster from the start, to the same traces.
    """
    python, flag, module, *arguments = command
    assert (python, flag) == (sys.executable, "-m")
    output = options["stdout"]
    assert options["stderr"] is output and set(options) <= {"cwd", "env", "stdin", "stdout", "stderr", "timeout"}
    request = {"module": module, "arguments": arguments, "output": output.name}
    request |= {"directory": str(options["cwd"]), "environment": dict(options["env"])}
    request["shortcuts"] = shortcuts
    server = _server()
    assert server.stdin and server.stdout
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return CompletedProcess(command, int(server.stdout.readline()))


def ask(module: str, *arguments: str, **variables: str) -> str:
    """Returns what a module prints in such a process, whose environment is this one's but for these variables."""
    with NamedTemporaryFile("r", suffix=".log") as output:
        command, environment = [sys.executable, "-m", module, *arguments], {**os.environ, **variables}
        done = run(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        said = output.read()
    assert done.returncode == 0, said
    return said


@cache
def _server() -> subprocess.Popen[str]:
    """One for all tests of this process. It ends when its standard input does."""
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT, HELPERS)}
    command = [sys.executable, __file__]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    assert server.stdin
    atexit.register(server.wait)
    atexit.register(server.stdin.close)
    return server


def _serve() -> None:
    """Forks for each line, and answers each with the exit code."""
    import quick_process  # isort: split
    import litgpt  # noqa: F401
    import thunder  # noqa: F401

    import fusioncache.transform.transform  # noqa: F401

    quick_process.take_vectors_on_trust()
    gc.freeze()  # what is never looked through is not copied for each fork
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answers.close()
            _become(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, file=answers, flush=True)


def _become(request: Mapping[str, Any]) -> None:
    """Runs a module as ``python -m`` does, and ends."""
    import runpy
    import tempfile
    import traceback

    from fusioncache import tracing
    from fusioncache.backends import torch_settings

    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    tempfile.tempdir = None  # it depends on a variable
    torch_settings.VARIABLES_AT_START.clear()  # of this process, which starts now
    torch_settings.VARIABLES_AT_START.update(os.environ)
    sys.path[0] = request["directory"]
    sys.argv = [request["module"], *request["arguments"]]
    if request["shortcuts"]:
        tracing.install()
    code = 1
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
