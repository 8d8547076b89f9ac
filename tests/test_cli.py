"""The command line: what it prints to the letter, and what it says when there is nothing to print."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recorded import STARTED, cast_template, chain_template, full_ledger, save, used

import fusioncache
from fusioncache.cache.ledger import Ledger
from fusioncache.cache.record import DIRECTORY_VARIABLE, SCHEMA_VERSION, Record, record_path
from fusioncache.cli.main import main
from fusioncache.cli.words import arities_text, one_line

_ROOT = Path(__file__).parent.parent
_CHAIN = chain_template()
_CAST = cast_template()


def _call(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def _out(*args: str) -> str:
    result = _call(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def _error(*args: str) -> str:
    result = _call(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr


def _lines(text: str) -> str:
    """The text without its first line break, so that it can start at the margin."""
    return text.removeprefix("\n")


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def _run(monkeypatch: pytest.MonkeyPatch) -> None:
    save(monkeypatch, full_ledger())


@pytest.fixture
def _two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    save(monkeypatch, full_ledger())
    save(monkeypatch, used(_CAST), run="ab" + "0" * 30, started=STARTED + 60, argv=["other.py"])


# What is printed


@pytest.mark.usefixtures("_run")
def test_stats():
    assert _out("stats") == _lines("""
run                           aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
command                       train.py --depth 4
started                       2023-11-14 22:13:20+00:00
pid                           4321
regions                       7
templates                     2
hits                          3
misses                        2
bypasses                      3
  compile failed: ValueError  1
  unknown op                  2
compiles                      3
compile seconds               2.125
loads                         1
load seconds                  0.004
not kept                      1
  a number among its inputs   1
saved seconds                 6.000 (an estimate)
canonicalize seconds          0.031
""")


@pytest.mark.usefixtures("_run")
def test_stats_as_json():
    expected = """{
  "schema": 1,
  "id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "started": 1700000000.0,
  "pid": 4321,
  "command": "train.py --depth 4",
  "regions": 7,
  "templates": 2,
  "hits": 3,
  "misses": 2,
  "bypasses": {
    "unknown op": 2,
    "compile failed: ValueError": 1
  },
  "compiles": 3,
  "compile_seconds": 2.125,
  "loads": 1,
  "load_seconds": 0.00390625,
  "unkept": {
    "a number among its inputs": 1
  },
  "saved_seconds": 6.0,
  "canonicalize_seconds": 0.03125
}
"""
    assert _out("stats", "--json") == expected


@pytest.mark.usefixtures("_two_runs")
def test_stats_of_another_run():
    assert _out("stats").startswith("run                   ab000000000000000000000000000000\n")
    assert json.loads(_out("stats", "--run", "aa", "--json"))["regions"] == 7


@pytest.mark.usefixtures("_two_runs")
def test_runs():
    pad, other, first = " " * 30, "ab" + "0" * 30, "a" * 32
    assert _out("stats", "--runs") == _lines(f"""
id{pad}  started                     pid  regions  templates  hits  compiles  compile seconds  command
{other}  2023-11-14 22:14:20+00:00  4321        1          1     0         1            1.000  other.py
{first}  2023-11-14 22:13:20+00:00  4321        7          2     3         3            2.125  train.py --depth 4
""")


@pytest.mark.usefixtures("_two_runs")
def test_runs_as_json():
    data = json.loads(_out("stats", "--runs", "--json"))
    assert data["schema"] == 1
    assert [run["id"] for run in data["runs"]] == ["ab" + "0" * 30, "a" * 32]
    (one,) = (run for run in data["runs"] if run["id"] == "a" * 32)
    assert {"schema": 1, **one} == json.loads(_out("stats", "--json", "--run", "aa"))


@pytest.mark.usefixtures("_run")
def test_ls():
    pad = " " * 62
    assert _out("ls") == _lines(f"""
id{pad}  name                           regions  hits  arities  compiles  compile seconds
{_CHAIN.key.digest}  {_CHAIN.name}               4     3  1-3, 7          2            2.000
{_CAST.key.digest}  {_CAST.name}        1     0  -               1            0.125
""")


@pytest.mark.usefixtures("_run")
def test_ls_as_json():
    assert json.loads(_out("ls", "--json")) == {
        "schema": 1,
        "run": "a" * 32,
        "templates": [
            {
                "digest": _CHAIN.key.digest,
                "name": _CHAIN.name,
                "regions": 4,
                "hits": 3,
                "arities": [[1], [2], [3], [7]],
                "compiles": 2,
                "compile_seconds": 2.0,
                "loads": 0,
                "load_seconds": 0.0,
            },
            {
                "digest": _CAST.key.digest,
                "name": _CAST.name,
                "regions": 1,
                "hits": 0,
                "arities": [[]],
                "compiles": 1,
                "compile_seconds": 0.125,
                "loads": 1,
                "load_seconds": 0.00390625,
            },
        ],
    }


@pytest.mark.usefixtures("_two_runs")
def test_ls_of_another_run():
    assert len(_out("ls").splitlines()) == 2
    assert len(_out("ls", "--run", "aa").splitlines()) == 3


def test_ls_of_a_run_without_templates(monkeypatch):
    ledger = Ledger()
    ledger.bypass("unknown op")
    save(monkeypatch, ledger)
    result = _call("ls")
    assert result.exit_code == 0
    assert result.stdout == "id  name  regions  hits  arities  compiles  compile seconds\n"
    assert result.stderr == f"Run {'a' * 32} has no templates: 'fusioncache stats' says what was bypassed and why.\n"


@pytest.mark.usefixtures("_run")
def test_show():
    assert _out("show", "residual_tanh") == _lines(f"""
name             {_CHAIN.name}
digest           {_CHAIN.key.digest}
regions          4
hits             3
arities          1-3, 7
compiles         2
compile seconds  2.000
loads            0
load seconds     0.000

format
  1

inputs
  input %0: bfloat16[10, 10] cuda

ops
  %1: float32[10, 10] cuda = residual(%0, attribute0)
  %2: float32[10, 10] cuda = prims.tanh(%1)
  %3: float32[10, 10] cuda = prims.mul(%2, constant0)

constants
  constant0: float 0x1.0000000000000p-1

attributes
  attribute0: dtype 'bfloat16'

outputs
  output %3

options
  nvfuser=0.2.36
""")


@pytest.mark.usefixtures("_run")
def test_show_says_that_an_ingredient_is_empty():
    assert "\n\nconstants\n  (none)\n\nattributes\n  attribute0: dtype 'float32'\n\n" in _out("show", "convert")


@pytest.mark.usefixtures("_run")
def test_show_as_json():
    data = json.loads(_out("show", _CHAIN.key.digest[:12], "--json"))
    ingredients = data.pop("ingredients")
    (listed,) = (one for one in json.loads(_out("ls", "--json"))["templates"] if one["name"] == _CHAIN.name)
    assert data == {"schema": 1, **listed}
    assert ingredients == [{"name": part.name, "text": part.text} for part in _CHAIN.key.ingredients]


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("id_", [_CHAIN.name, _CHAIN.name[:10], _CHAIN.key.digest, _CHAIN.key.digest[:12]])
def test_show_takes_the_start_of_a_name_or_digest(id_):
    assert _out("show", id_).startswith(f"name             {_CHAIN.name}\n")


def test_a_command_line_cannot_break_a_table_or_the_terminal(monkeypatch):
    save(monkeypatch, used(_CAST), argv=["a\nb\x1b[31m"])
    assert _out("stats", "--runs").splitlines()[1].endswith("  'a\\nb\\x1b[31m'")
    assert "\ncommand               'a\\nb\\x1b[31m'\n" in _out("stats")


@pytest.mark.parametrize(
    ("arities", "text"),
    [
        ([()], "-"),
        ([], "-"),
        ([(1,)], "1"),
        ([(1,), (2,)], "1, 2"),
        ([(3,), (1,), (2,)], "1-3"),
        ([(1,), (2,), (3,), (5,), (7,), (8,), (9,), (10,)], "1-3, 5, 7-10"),
        ([(1, 4), (2, 4), (3, 6)], "1-3 / 4, 6"),
    ],
)
def test_arities(arities, text):
    assert arities_text(arities) == text


def test_one_line_leaves_what_can_be_printed():
    assert one_line("caf\u00e9 'x' \\n\t\u202e") == "caf\u00e9 'x' \\n\\t\\u202e"


# What goes wrong

_READERS = [("stats",), ("stats", "--runs"), ("ls",), ("ls", "--json"), ("show", "x")]


@pytest.mark.parametrize("command", _READERS, ids=" ".join)
def test_no_record(command):
    message = _error(*command)
    assert message.startswith(f"Error: there is no record at {record_path()}: run a model with fusioncache first")
    assert DIRECTORY_VARIABLE in message


@pytest.mark.parametrize("command", _READERS, ids=" ".join)
def test_a_corrupt_record(command):
    record_path().write_text("This is no database. " * 1000)
    message = _error(*command)
    assert message.startswith(f"Error: {record_path()} cannot be read (file is not a database)")
    assert "move it away" in message


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("command", [("stats",), ("ls",), ("show", _CHAIN.name)], ids=" ".join)
def test_a_record_that_was_damaged_after_it_was_opened(command):
    with closing(sqlite3.connect(record_path())) as database, database:
        database.execute("UPDATE templates SET ingredients = '[1]'")
        database.execute("UPDATE runs SET bypasses = '[1]'")
    assert "cannot be read" in _error(*command)


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("command", _READERS, ids=" ".join)
def test_a_record_of_another_format(command):
    with closing(sqlite3.connect(record_path())) as database:
        database.execute("PRAGMA user_version = 7")
    message = _error(*command)
    formats = f"has format 7 and this fusioncache reads format {SCHEMA_VERSION}"
    assert message.startswith(f"Error: {record_path()} {formats}: move it away")


@pytest.mark.usefixtures("_run")
def test_a_record_without_runs():
    with closing(sqlite3.connect(record_path())) as database, database:
        database.execute("DELETE FROM runs")
    assert f"{record_path()} has no runs: run a model" in _error("stats")


@pytest.mark.usefixtures("_run")
def test_an_unknown_template():
    message = _error("show", "nosuch")
    assert str(record_path()) in message
    assert "'nosuch': see 'fusioncache ls'" in message


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("command", ["stats", "ls"])
def test_an_unknown_run(command):
    message = _error(command, "--run", "f00")
    assert str(record_path()) in message
    assert "'f00': see 'stats --runs'" in message


@pytest.mark.usefixtures("_two_runs")
@pytest.mark.parametrize("command", ["stats", "ls"])
def test_an_ambiguous_run(command):
    assert _error(command, "--run", "a") == _lines(f"""
Error: 'a' is the start of 2 runs, give more of one:
  ab{"0" * 30}
  {"a" * 32}
""")


def test_an_ambiguous_template(monkeypatch):
    first, second = (cast_template(f"cast_{options}", options) for options in ("a", "b"))
    save(monkeypatch, used(first, second))
    assert _error("show", "cast") == _lines(f"""
Error: 'cast' is the start of 2 templates, give more of one:
  {first.key.digest}  cast_a
  {second.key.digest}  cast_b
""")


def test_an_ambiguous_template_does_not_fill_the_screen(monkeypatch):
    save(monkeypatch, used(*(cast_template(f"cast_{number}", str(number)) for number in range(13))))
    lines = _error("show", "cast").splitlines()
    assert len(lines) == 12
    assert lines[-1] == "  and 3 more"


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize(
    "command",
    [("nosuch",), ("show",), ("ls", "x"), ("ls", "--nosuch"), ("stats", "--runs", "--run", "a")],
    ids=" ".join,
)
def test_wrong_usage(command):
    result = _call(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr


# How it runs


@pytest.mark.parametrize("command", [(), ("stats",), ("ls",), ("show",)], ids=" ".join)
def test_help_gives_an_example(command):
    text = _out(*command, "--help")
    assert re.search(rf"Examples?:\n +fusioncache {' '.join(command)}", text)


def test_help_says_that_saved_seconds_are_an_estimate():
    assert "an estimate" in _out("stats", "--help")


def test_version():
    assert _out("--version") == f"fusioncache, version {fusioncache.__version__}\n"


def _environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "TZ": "UTC", **variables}


def _python(*args: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, *args], _environment()
    return subprocess.run(command, check=False, cwd=_ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("command", [("stats",), ("ls",), ("show", _CHAIN.name)], ids=" ".join)
def test_neither_torch_nor_thunder_nor_rich_is_imported(command):
    script = f"""
import runpy, sys
sys.argv = ["fusioncache", *{command!r}]
try:
    runpy.run_module("fusioncache", run_name="__main__")
except SystemExit as exit:
    assert not exit.code, exit.code
print(sorted({{"click", "torch", "thunder", "rich", "numpy"}} & set(sys.modules)))
"""
    result = _python("-c", script)
    assert (result.returncode, result.stderr) == (0, "")
    *printed, imported = result.stdout.splitlines()
    assert "\n".join(printed) + "\n" == _out(*command)
    assert imported == "['click']"


@pytest.mark.usefixtures("_run")
def test_module_fails_under_its_own_name():
    result = _python("-m", "fusioncache", "ls", "--nosuch")
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: fusioncache ls")


def _on_terminal(*command: str, **variables: str) -> str:
    """What a terminal of 100 columns is sent."""
    ours, theirs = pty.openpty()
    environment = _environment(TERM="xterm-256color", COLUMNS="100", **variables)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        if name not in variables:
            environment.pop(name, None)
    arguments = [sys.executable, "-m", "fusioncache", *command]
    with subprocess.Popen(arguments, cwd=_ROOT, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        chunks = []
        while chunk := _read(ours):
            chunks.append(chunk)
        os.close(ours)
    assert process.returncode == 0
    return b"".join(chunks).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""


@pytest.mark.usefixtures("_run")
def test_a_terminal_gets_the_start_of_each_id():
    text = re.sub(r"\x1b\[[0-9;]*m", "", _on_terminal("ls"))
    head, first, second = (line.split() for line in text.splitlines())
    assert head[:2] == ["id", "name"]
    assert first[:2] == [_CHAIN.key.digest[:12], _CHAIN.name]
    assert second[:2] == [_CAST.key.digest[:12], _CAST.name]
    assert max(map(len, text.splitlines())) <= 100
    assert len(Record().find(first[0])) == 1


@pytest.mark.usefixtures("_run")
def test_no_color_is_honoured():
    color = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert color.search(_on_terminal("ls"))
    assert not color.search(_on_terminal("ls", NO_COLOR="1"))


def test_a_terminal_shows_brackets_as_they_are(monkeypatch):
    save(monkeypatch, used(_CAST), argv=["[red]x"])
    assert "[red]x" in _on_terminal("stats", "--runs", NO_COLOR="1")
