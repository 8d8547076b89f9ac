"""Processes that start in a tenth of a second: forks of one that has imported torch, Thunder and fusioncache.

A test that depends on interpreter startup, import order or a variable read at import needs a new process instead.
"""

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

from repository import HELPERS, ROOT, import_path


def use(monkeypatch: Any, shortcuts: bool = False) -> None:
    """Makes benchmarks fork their processes in this test. With shortcuts Thunder traces faster, to equal traces."""
    from benchmarks.common import processes

    started = {"run": partial(run, shortcuts=shortcuts)}
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(**{**vars(subprocess), **started}))


def run(command: Sequence[str], *, shortcuts: bool = False, **options: Any) -> CompletedProcess[Any]:
    """Replaces ``subprocess.run`` for ``[sys.executable, "-m", module, *arguments]`` and the options below."""
    python, flag, module, *arguments = command
    assert (python, flag) == (sys.executable, "-m")
    output = options["stdout"]
    assert options["stderr"] is output and set(options) <= {"cwd", "env", "stdin", "stdout", "stderr", "timeout"}
    request = {"module": module, "arguments": arguments, "output": output.name}
    request |= {"directory": str(options["cwd"]), "environment": dict(options["env"])}
    request["shortcuts"] = shortcuts
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return CompletedProcess(command, int(server.stdout.readline()))


def read_output(module: str, *arguments: str, folder: Path = ROOT, **variables: str) -> str:
    """Returns what a module prints in a forked process, whose environment is this one's with these variables."""
    with tempfile.NamedTemporaryFile("r", suffix=".log") as output:
        command, environment = [sys.executable, "-m", module, *arguments], {**os.environ, **variables}
        done = run(command, cwd=folder, env=environment, stdout=output, stderr=output)
        said = output.read()
    assert done.returncode == 0, said
    return said


@cache
def _server() -> subprocess.Popen[str]:
    """Returns the server that all tests of this process share. It ends when its standard input is closed."""
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT, HELPERS)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, __file__], env=environment, cwd=ROOT, **pipes)
    atexit.register(server.wait)
    atexit.register(server.stdin.close)
    return server


def _serve() -> None:
    """Forks a process for each line of standard input, and answers with its exit code."""
    import quick_process  # isort: split
    import litgpt  # noqa: F401
    import thunder  # noqa: F401

    import fusioncache.transform.transform  # noqa: F401

    quick_process.skip_vector_checks()
    gc.freeze()  # frozen objects are never traversed, so that forks do not copy them
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answers.close()
            _become(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, file=answers, flush=True)


def _become(request: Mapping[str, Any]) -> None:
    """Runs a module as ``python -m`` does, and exits the process."""
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
