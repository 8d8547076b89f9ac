"""Golden files: sessions on records and stores that are always the same, with what each command prints."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from commands import call
from golden_states import CI, NOW, STATES
from report_records import Page

from fusioncache.store import default_path
from fusioncache.store import store as store_module

_HEADING, _FACT, _CALL, _ERROR = "## ", "-- ", "$ ", "! "
"""How lines begin that say what there is, what the next calls show, what is called, and what went to stderr."""


class Stage:
    """A folder in which commands are called. Its name always has the same length, because lines are broken by that."""

    def __init__(self, folder, patch):
        self._folder, self._patch, self._words = folder, patch, {}

    def render(self, golden: str, columns: int) -> str:
        """Returns a golden file as it should be: its headings and calls, with what they print now."""
        parts = []
        for line in golden.splitlines():
            if line.startswith((_HEADING, _FACT)):
                parts.append(line)
            if line.startswith(_HEADING):
                self._lay(line.removeprefix(_HEADING))
                self._patch.setenv("COLUMNS", str(columns))
            elif line.startswith(_CALL):
                parts.append("\n".join([line, *map(self._normalize, self._run(line.removeprefix(_CALL)))]))
        return "\n\n".join(parts) + "\n"

    def _lay(self, there):
        self._patch.undo()
        for path in self._folder.iterdir():
            shutil.rmtree(path)
        work, remote = self._folder / "work", self._folder / "remote"
        work.mkdir()
        (work / "x.dot").write_text("digraph { }\n")
        self._patch.chdir(work)
        self._patch.setenv("PATH", "")
        self._patch.setenv("FUSIONCACHE_SIGNING_KEY", CI.text)
        self._patch.setenv("FUSIONCACHE_DIR", str(self._folder / "fusioncache"))
        with pytest.MonkeyPatch.context() as fixed:
            # They are parts of entries, whose sizes are printed.
            fixed.setattr(store_module, "get_host", lambda: "host")
            fixed.setattr(store_module.os, "getpid", lambda: 4321)
            words = STATES[there](fixed)
        for file in (self._folder / "fusioncache").rglob("*"):
            if file.stat().st_mtime > NOW:
                os.utime(file, (NOW - 3600, NOW - 3600))
        places = {"STORE": default_path(), "REMOTE": remote, "PACK": remote / "pack", "HERE": work}
        self._words = (words if isinstance(words, dict) else {}) | {word: str(path) for word, path in places.items()}

    def _run(self, line: str) -> Iterator[str]:
        line = re.sub(r"\b[A-Z]+\b", lambda word: self._words.get(word[0], word[0]), line)
        answer, _, command = line.rpartition(" | ")
        program, *arguments = shlex.split(command)
        if program == "export":
            name, _, value = arguments[0].partition("=")
            self._patch.setenv(name, value)
        elif program == "page":
            yield from Page(Path(arguments[0]).read_text(encoding="utf-8")).lines
        elif program == "fusioncache":
            yield from self._call(arguments, answer.removeprefix("echo "))
        else:
            environment = {"PATH": os.defpath}
            done = subprocess.run(line, shell=True, text=True, capture_output=True, check=True, env=environment)
            yield from done.stdout.splitlines()

    def _call(self, arguments: Sequence[str], answer: str) -> Iterator[str]:
        result = call(*arguments, input=f"{answer}\n" if answer else "")
        yield from result.stdout.splitlines()
        yield from (f"{_ERROR}{line}" for line in result.stderr.splitlines())
        if result.exit_code:
            yield f"exit {result.exit_code}"

    def _normalize(self, line: str) -> str:
        line = line.replace(str(self._folder), "/tmp/golden-12345678")
        line = re.sub(r"\b(torch/nn/functional\.py):\d{4}\b", r"\1:1234", line)
        line = re.sub(r'"seconds": \d+\.\d{6,}', '"seconds": 0.1', line)
        return re.sub(r" in \d+\.\d s;", " in 0.1 s;", line).rstrip()


@contextmanager
def set_stage() -> Iterator[Stage]:
    """Yields a stage in which it is always the same time of the same day."""
    with TemporaryDirectory(prefix="golden-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        patch.setattr(time, "time", lambda: NOW)
        with pytest.MonkeyPatch.context() as own:
            yield Stage(Path(folder), own)
    time.tzset()
