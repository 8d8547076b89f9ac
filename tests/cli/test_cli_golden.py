"""What every command prints, to the letter: for good input and for wrong input, after a pull, and where nothing is.

A golden file has the calls as well. To add one, write its line; to write anew what they print, set a variable:
``REWRITE_GOLDEN=1 python -m pytest tests/cli/test_cli_golden.py``.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_commands import EMPTY, FULL, PULLED, Stage, set_stage

from fusioncache.cli.main import COMMANDS

_FOLDER = Path(__file__).with_name("golden")
_NARROW, _WIDE = 80, 120
_NO_STORE = ("bench", "completion")
"""Commands that look into no store."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Iterator[Stage]:
    with set_stage(tmp_path_factory.mktemp("golden")) as stage:
        yield stage


def _read(command: str, columns: int = _NARROW) -> str:
    return (_FOLDER / f"{command}-{columns}.txt").read_text(encoding="utf-8")


def _frame(text: str) -> list[str]:
    """Returns the headings and the calls of a golden file."""
    return [line for line in text.splitlines() if line.startswith(("## ", "$ "))]


@pytest.mark.parametrize("columns", [_NARROW, _WIDE])
@pytest.mark.parametrize("command", ["fusioncache", *COMMANDS])
def test_the_command_prints_what_its_golden_file_has(stage, command, columns):
    golden = _read(command, columns)
    text = stage.render(golden, columns)
    if os.environ.get("REWRITE_GOLDEN"):
        (_FOLDER / f"{command}-{columns}.txt").write_text(text, encoding="utf-8")
    else:
        assert text == golden, "REWRITE_GOLDEN=1 writes the file anew"


@pytest.mark.parametrize("command", ["fusioncache", *COMMANDS])
def test_both_widths_have_the_same_calls(command):
    assert _frame(_read(command, _NARROW)) == _frame(_read(command, _WIDE))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_called_with_good_and_wrong_input_and_where_nothing_is(command):
    text = _read(command)
    assert f"$ fusioncache {command} --help\n" in text and f"## {EMPTY}\n" in text
    if command not in _NO_STORE:
        assert f"## {FULL}\n" in text and "\n! Error: " in text


def test_every_command_that_reads_the_store_is_called_after_a_pull():
    for command in ("diff", "explain", "graph", "ls", "show", "stats"):
        assert f"## {PULLED}\n" in _read(command)
