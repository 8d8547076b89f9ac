"""How the command line starts: what it imports, its help, completion, and the benchmark behind it."""

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from commands import CAST, CHAIN, FIRST_RUN, OTHER_RUN, call, get_error, save_run, save_two_runs
from kept_programs import SavedProgram
from repository import ROOT
from signing_keys import make_signing_key
from store_contents import save

from fusioncache.cli import upkeep as bench
from fusioncache.cli.main import main
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


def _completed(*words: str) -> list[str]:
    *before, start = words
    completer = ShellComplete(main, {}, "fusioncache", "_FUSIONCACHE_COMPLETE")
    return [item.value for item in completer.get_completions(list(before), start)]


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


def test_the_shell_is_answered(monkeypatch):
    save_run(monkeypatch)
    monkeypatch.setenv("_FUSIONCACHE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fusioncache show resi")
    monkeypatch.setenv("COMP_CWORD", "2")
    result = _python("-m", "fusioncache")
    assert result.stdout == f"plain,{CHAIN.name}\n"


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
