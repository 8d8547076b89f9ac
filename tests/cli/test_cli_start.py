"""How the command line starts: what it imports, its help, completion, and the benchmark behind it."""

import subprocess
import sys

import click
from click.shell_completion import ShellComplete
from commands import CAST, CHAIN, FIRST_RUN, OTHER_RUN, call, get_error, save_run, save_two_runs
from kept_programs import SavedProgram
from repository import ROOT
from signing_keys import make_signing_key
from store_contents import save

from fusioncache.cli import upkeep as bench
from fusioncache.cli.main import main
from fusioncache.humanize import escape_controls
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


def test_a_command_imports_no_other_command():
    script = """
import sys
from fusioncache.cli.main import COMMANDS, main
assert not {place.partition(":")[0] for place in COMMANDS.values()} & set(sys.modules)
main(["dir"], standalone_mode=False)
print(sorted({place.partition(":")[0] for place in COMMANDS.values()} & set(sys.modules)))
"""
    assert _python("-c", script).stdout.splitlines()[-1] == "['fusioncache.cli.upkeep']"


def test_module_fails_under_its_own_name():
    result = _python("-m", "fusioncache", "ls", "--nosuch")
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: fusioncache ls")


def _completed(*words: str) -> list[str]:
    *before, start = words
    completer = ShellComplete(main, {}, "fusioncache", "_FUSIONCACHE_COMPLETE")
    return [item.value for item in completer.get_completions(list(before), start)]


def test_commands_and_options_complete():
    assert _completed("s") == ["show", "stats"]
    assert _completed("show", "x", "--re") == ["--regions", "--repro", "--reads"]
    assert _completed("ls", "--sort", "s") == ["seconds", "size"]


def test_ids_complete(monkeypatch):
    save_two_runs(monkeypatch)
    assert _completed("show", "") == [CHAIN.name, CAST.name]
    assert _completed("show", "resi") == [CHAIN.name]
    assert _completed("graph", CHAIN.key.digest[:4]) == [CHAIN.key.digest]
    assert _completed("stats", "--run", "") == [OTHER_RUN, FIRST_RUN]
    assert _completed("diff", "ab") == [OTHER_RUN]


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


def test_one_line_leaves_what_can_be_printed():
    assert escape_controls("caf\u00e9 'x' \\n\t\u202e") == "caf\u00e9 'x' \\n\\t\\u202e"
