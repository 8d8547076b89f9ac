"""The command line as a process: what it imports, completes and hands on, and what a terminal is sent."""

import os
import pty
import re
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from commands import CAST, CHAIN, FIRST_RUN, OTHER_RUN, call, get_error, get_output, save_run, save_two_runs
from kept_programs import SavedProgram
from repository import ROOT
from signing_keys import make_signing_key
from store_contents import save

from fusioncache.cli import upkeep as bench
from fusioncache.cli.console import Column, format_table
from fusioncache.cli.main import main
from fusioncache.observe.record.database import RecordReader
from fusioncache.store import Store

_LIGHT = [
    *([name] for name in ("stats", "ls", "dir", "verify", "diff")),
    ["prune", "--dry-run"],
    ["ls", "--store"],
    ["ls", "--programs"],
    ["show", "Llama", "--trace", "forward"],
    ["show", CHAIN.name],
    ["completion", "zsh"],
    ["clear", "--dry-run"],
]
"""What needs nothing but click and the standard library."""
_TORCHLESS = [
    ["push", "SHARED"],
    ["warm"],
    ["show", CHAIN.name, "--repro"],
    ["graph", CHAIN.name, "--svg"],
    ["explain", "Llama", "Llama"],
    ["diff", "Llama", "Llama"],
    ["--help"],
]


def _python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], check=False, cwd=ROOT, capture_output=True, text=True)


def test_no_command_imports_what_it_does_not_need(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", make_signing_key("ci").text)
    save_two_runs(monkeypatch)
    store = Store.open()
    save(store, 1)
    SavedProgram().save(store)
    script = f"""
import sys
from fusioncache.cli.main import main
def found():
    return {{"torch", "thunder", "numpy", "rich", "networkx", "pygments", "jinja2"}} & set(sys.modules)
for command in {_LIGHT!r} + {_TORCHLESS!r}:
    assert "fsspec" not in sys.modules or command not in {_LIGHT!r}, command
    assert not main(command, prog_name="fusioncache", standalone_mode=False), command
    assert not found(), (command, found())
"""
    result = _python("-c", script.replace("SHARED", str(tmp_path / "shared")))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("s", ["show", "stats"]),
        ("show x --re", ["--regions", "--repro", "--reads"]),
        ("ls --sort s", ["seconds", "size"]),
        ("show ", [CHAIN.name, CAST.name]),
        ("show resi", [CHAIN.name]),
        (f"graph {CHAIN.key.digest[:4]}", [CHAIN.key.digest]),
        ("stats --run ", [OTHER_RUN, FIRST_RUN]),
        ("diff ab", [OTHER_RUN]),
    ],
)
def test_commands_options_and_ids_complete(monkeypatch, words, completed):
    save_two_runs(monkeypatch)
    *before, start = words.split(" ")
    completer = ShellComplete(main, {}, "fusioncache", "_FUSIONCACHE_COMPLETE")
    assert [item.value for item in completer.get_completions(before, start)] == completed


def test_bench_hands_everything_over_or_says_where_the_benchmarks_are(monkeypatch, tmp_path, capfd):
    script = tmp_path / "scaling.py"
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    monkeypatch.setattr(bench, "SCRIPT", script)
    assert call("bench", "--layers", "1,2", "--json", "x.json").exit_code == 3
    assert capfd.readouterr().out == "['--layers', '1,2', '--json', 'x.json']\n"
    monkeypatch.setattr(bench, "SCRIPT", tmp_path / "none.py")
    assert "clone fusioncache's repository" in get_error("bench")


def test_a_report_is_opened_in_the_browser(monkeypatch, tmp_path):
    save_run(monkeypatch)
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr(click, "launch", opened.append)
    assert call("report", "-o", "a b.html", "--open").exit_code == 0
    assert opened == [f"{tmp_path.as_uri()}/a%20b.html"]


_COLOR = re.compile(r"\x1b\[[0-9;]*3[0-7]")


def _on_terminal(*command: str, **variables: str) -> str:
    """What a terminal of 100 columns is sent."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    arguments, environment = [sys.executable, "-m", "fusioncache", *command], {**environment, **variables}
    with subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=theirs, stderr=theirs) as process:
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


def test_a_terminal_gets_colours_unless_it_wants_none_and_the_start_of_each_id(monkeypatch):
    save_run(monkeypatch)
    shown, plain = _on_terminal("ls"), _on_terminal("show", CAST.name, "--repro", NO_COLOR="1")
    assert _COLOR.search(shown) and not _COLOR.search(plain)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    head, first, second = (line.split() for line in text.splitlines())
    assert head[:2] == ["id", "name"]
    assert first[:2] == [CHAIN.key.digest[:12], CHAIN.name]
    assert second[:2] == [CAST.key.digest[:12], CAST.name]
    assert max(map(len, text.splitlines())) <= 100
    assert len(RecordReader().find_templates(first[0])) == 1


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_a_table_folds_and_cuts_what_a_terminal_has_no_room_for(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    layout = (Column("id", id=True), Column("cut", cut=True), Column("folded", fold=True), Column("out", rank=1))
    value = f"{'x' * 50}  a path {'/usr' * 30} 'fusioncache ls --programs' 125 ms"
    lines = format_table(layout, [("f" * 64, "n" * 70, value, "left out")]).splitlines()
    assert max(map(len, lines)) <= columns and lines[0].split()[:3] == ["id", "cut", "folded"]
    assert ("left out" in lines[1]) == (columns == 100)
    # What is folded is there, and what is cut shows its end.
    start = lines[0].index("folded")
    folded = "".join(line[start:].removesuffix("left out") for line in lines[1:])
    assert "".join(folded.split()) == "".join(value.split())
    assert re.search(r" n+…n{5,22}  ", lines[1])


def test_progress_is_shown_on_a_terminal_only_and_on_stderr(store, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", make_signing_key("ci").text)
    save(store, *range(5))
    shared = str(tmp_path / "shared")
    text = _on_terminal("push", shared, "--dry-run")
    assert "push" in text and "1/1" in text and "would push 5 entries in 1 pack" in text
    assert get_output("push", shared).startswith("pushed 5 entries in 1 pack")
