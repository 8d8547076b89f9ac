"""The exact output of every command: for good input and for wrong input, after a pull, and without any data.

A golden file contains the calls as well. To add one, write its line; to rewrite the outputs, set a variable:
``REWRITE_GOLDEN=1 python -m pytest tests/cli/test_cli_golden.py``.
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from commands import call
from golden_states import CI, EMPTY, FULL, LONG, NOW, PULLED, STATES
from report_records import Page

from fusioncache.cli.main import COMMANDS
from fusioncache.store import default_path
from fusioncache.store import store as store_module

_FOLDER = Path(__file__).with_name("golden")
_NARROW, _WIDE = 80, 120
_SOURCE = re.compile(r"--(?:json|code|definition|repro|trace)\b|^\$ fusioncache (?:graph|completion) (?!.*-o)")
"""Calls that print source or data, to be read by programs."""
_FITTED = ("diff", "explain", "ls", "show", "stats")
"""Commands that print names, paths and lists of any length."""
_READERS = ("diff", "explain", "graph", "ls", "show", "stats")
"""Commands that read the store, and are called after a pull."""
_NO_STORE = ("completion",)
"""Commands that read no store and have no ``--json``."""
_OF_MACHINE = ("doctor",)
"""Commands whose output depends on the machine. ``test_cli_doctor.py`` tests it."""
_HEADING, _FACT, _CALL, _ERROR = "## ", "-- ", "$ ", "! "
"""Prefixes of the lines of a golden file: a heading, what the next calls show, a call, and a line of its stderr."""


class Stage:
    """A folder in which commands are called. Its name has a fixed length, because line breaks depend on it."""

    def __init__(self, folder, patch):
        self._folder, self._patch, self._words = folder, patch, {}

    def render(self, golden: str, columns: int) -> str:
        """Returns a golden file with its headings and calls, and their current output."""
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
        work, remote = self._folder / "here", self._folder / "remote"
        work.mkdir()
        (work / "x.dot").write_text("digraph { }\n")
        self._patch.chdir(work)
        self._patch.setenv("PATH", "")
        self._patch.setenv("FUSIONCACHE_SIGNING_KEY", CI.text)
        self._patch.setenv("FUSIONCACHE_DIR", str(self._folder / "fusioncache"))
        with pytest.MonkeyPatch.context() as fixed:
            # Entries contain these values, and the sizes of entries are printed.
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
        line = line.replace(str(self._folder), "FOLDER")
        line = re.sub(r"\b(torch/nn/functional\.py):\d{4}\b", r"\1:1234", line)
        line = re.sub(r'"seconds": \d+\.\d{6,}', '"seconds": 0.1', line)
        return re.sub(r" in \d+\.\d s;", " in 0.1 s;", line).rstrip()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Yields a stage with a fixed time in a fixed time zone."""
    with TemporaryDirectory(prefix="golden-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        patch.setattr(time, "time", lambda: NOW)
        with pytest.MonkeyPatch.context() as own:
            yield Stage(Path(folder), own)
    time.tzset()


def _read(command: str, variant: int | str = _NARROW) -> str:
    return (_FOLDER / f"{command}-{variant}.txt").read_text(encoding="utf-8")


def _frame(text: str) -> list[str]:
    """Returns the headings and the calls of a golden file."""
    return [line for line in text.splitlines() if line.startswith(("## ", "$ "))]


@pytest.mark.parametrize("name", sorted(path.stem for path in _FOLDER.glob("*-*.txt")))
def test_the_commands_print_what_the_golden_file_has(stage, name):
    if name == "show-definition":
        pytest.importorskip("nvfuser_direct")
    path = _FOLDER / f"{name}.txt"
    golden = path.read_text(encoding="utf-8")
    text = stage.render(golden, _WIDE if name.endswith(f"-{_WIDE}") else _NARROW)
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    else:
        assert text == golden, "REWRITE_GOLDEN=1 writes the file anew"


def test_every_command_with_json_has_a_golden_file_for_it():
    assert {command for command in COMMANDS if "  --json" not in _read(command)} == set(_NO_STORE)
    paths = {path.stem.removesuffix("-json"): path for path in _FOLDER.glob("*-json.txt")}
    assert paths.keys() == set(COMMANDS) - {*_NO_STORE, *_OF_MACHINE}
    for path in paths.values():
        assert all(line.endswith(" --json") for line in _frame(path.read_text()) if line.startswith("$ ")), path


@pytest.mark.parametrize("command", ["fusioncache", *COMMANDS])
def test_every_command_is_called_with_good_and_wrong_input_and_nothing_is_wider_than_the_terminal(command):
    narrow, wide = _read(command), _read(command, _WIDE)
    assert _frame(narrow) == _frame(wide)
    assert not list(_find_wide(narrow, _NARROW)) and not list(_find_wide(wide, _WIDE))
    assert f"$ {'' if command == 'fusioncache' else 'fusioncache '}{command} --help\n" in narrow
    assert f"## {EMPTY}\n" in narrow
    if command in COMMANDS and command not in _NO_STORE:
        assert f"## {FULL}\n" in narrow and "\n! Error: " in narrow
    if command in _READERS:
        assert f"## {PULLED}\n" in narrow
    if command in _FITTED:
        with_long_names = narrow.partition(f"## {LONG}\n")[2].partition("\n## ")[0]
        assert max(map(len, with_long_names.splitlines())) >= _NARROW - 2


def _find_wide(text: str, columns: int) -> Iterator[str]:
    """Yields the lines that are wider than the terminal, and neither source nor one path, which can be copied whole."""
    is_text = True
    for line in text.splitlines():
        words = line.removeprefix("! ")
        if line.startswith(("## ", "$ ")):
            is_text = not _SOURCE.search(line)
        elif is_text and len(words) > columns and not ("/" in words and len(words.split()) == 1):
            yield line
