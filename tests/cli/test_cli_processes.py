"""The command line as a process: its imports, completion, a report in the browser, and output to a terminal.

Also messages of ``pull`` about servers, packages and disks, and compiles, output and failures of ``warm``.
"""

import os
import pty
import re
import socket
import subprocess
import sys
import uuid
from contextlib import closing
from importlib import import_module

import click
import pytest
from commands import CAST, CHAIN, call, get_error, get_output, save_run, save_two_runs
from file_server import Handler, serve
from repository import ROOT, run_code
from saved_programs import SavedProgram
from signing_keys import make_signing_key
from store_contents import save
from store_processes import PersistentEager, fill_store

from fusioncache.accelerators.precompile import entry_compiler as warmer
from fusioncache.observe.record.database import RecordReader
from fusioncache.store import Store, transport

_COMMANDS = [
    *([name] for name in ("stats", "ls", "dir", "verify", "diff")),
    ["prune", "--dry-run"],
    ["ls", "--store"],
    ["ls", "--programs"],
    ["show", "Llama", "--trace", "forward"],
    ["show", CHAIN.name],
    ["completion", "zsh"],
    ["clear", "--dry-run"],
    ["push", "SHARED"],
    ["warm"],
    ["show", CHAIN.name, "--repro"],
    ["graph", CHAIN.name],
    ["explain", "Llama", "Llama"],
    ["explain", "Llama", "Llama", "--all"],
    ["--help"],
]


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", make_signing_key("ci").text)
    monkeypatch.setattr(transport, "PAUSES", (0.0,))


def test_no_command_imports_what_it_does_not_need(monkeypatch, tmp_path):
    save_two_runs(monkeypatch)
    store = Store.open()
    save(store, 1)
    SavedProgram().save(store)
    script = f"""
import sys
from fusioncache.cli.main import main
heavy = {{"torch", "thunder", "numpy", "rich", "networkx", "pygments", "jinja2"}}
for command in {_COMMANDS!r}:
    assert not main(command, prog_name="fusioncache", standalone_mode=False), command
    assert not heavy & set(sys.modules), (command, heavy & set(sys.modules))
print("all commands")
"""
    assert run_code(script.replace("SHARED", str(tmp_path / "shared"))).endswith("all commands\n")


def test_a_report_is_opened_in_the_browser(monkeypatch, tmp_path):
    save_run(monkeypatch)
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr(click, "launch", opened.append)
    assert call("report", "-o", "a b.html", "--open").exit_code == 0
    assert opened == [f"{tmp_path.as_uri()}/a%20b.html"]


def _on_terminal(*command: str, **variables: str) -> str:
    """Returns the output of a command to a terminal of 100 columns."""
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
    except OSError:  # Linux raises this if the other end is closed
        return b""


def test_a_terminal_gets_colours_unless_it_wants_none_and_the_start_of_each_id(monkeypatch):
    save_run(monkeypatch)
    shown, plain = _on_terminal("ls"), _on_terminal("show", CAST.name, "--repro", NO_COLOR="1")
    assert re.search(r"\x1b\[[0-9;]*3[0-7]", shown) and not re.search(r"\x1b\[[0-9;]*3[0-7]", plain)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    head, first, second = (line.split() for line in text.splitlines())
    assert head[:2] == ["id", "name"]
    assert first[:2] == [CHAIN.key.digest[:12], CHAIN.name]
    assert second[:2] == [CAST.key.digest[:12], CAST.name]
    assert max(map(len, text.splitlines())) <= 100
    assert len(RecordReader().find_templates(first[0])) == 1
    assert [line.split()[0] for line in get_output("ls").splitlines()[1:]] == [CHAIN.key.digest, CAST.key.digest]


def test_progress_is_shown_on_a_terminal_only_and_on_stderr(store, tmp_path):
    save(store, *range(5))
    shared = str(tmp_path / "shared")
    text = _on_terminal("push", shared, "--dry-run")
    assert "push" in text and "1/1" in text and "would push 5 entries in 1 pack" in text
    assert get_output("push", shared).startswith("pushed 5 entries in 1 pack")


@pytest.fixture
def url():
    return f"memory://{uuid.uuid4().hex}"


def test_a_server_that_gives_no_answer_or_an_error_is_not_taken_for_an_empty_one(store, tmp_path):
    save(store, 1)
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/x"
        said = get_error("pull", dead)
    assert said.startswith(f"Error: {dead} cannot be used, could not read: ")
    assert said.endswith(": check the address, and that something answers there\n")
    with serve(tmp_path / "served") as served:
        assert get_error("pull", f"{served}/x").endswith("there is no such folder: check the address\n")
        assert get_output("pull", served) == f"nothing to pull: {served} has no entries\n"
        get_output("push", str(tmp_path / "served"))
        Handler.broken = "/index"
        assert "could not read: ClientResponseError: 500" in get_error("pull", served, "--dir", str(tmp_path / "there"))


def test_a_missing_package_is_named_with_what_installs_it(store, monkeypatch):
    for module in ("s3fs", "gcsfs", "aiohttp"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    for scheme in ("s3", "gs", "http", "https"):  # drops classes that were loaded before
        monkeypatch.delitem(import_module("fsspec.registry")._registry, scheme, raising=False)
    for address, package, extra in (
        ("s3://bucket/x", "s3fs", "s3"),
        ("gs://bucket/x", "gcsfs", "gs"),
        ("https://host/x", "aiohttp", "http"),
    ):
        said = get_error("pull", address)
        assert said.endswith(f': it needs the package {package}, pip install "fusioncache[{extra}]"\n')


def test_a_full_disk_is_said(url, store, tmp_path, monkeypatch):
    save(store, 1)
    get_output("push", url)
    there = str(tmp_path / "there")
    Store.open(there)

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert "the store cannot be used: [Errno 28] No space left on device" in get_error("pull", url, "--dir", there)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> PersistentEager:
    backend = PersistentEager({"machine": "there"})
    monkeypatch.setattr(warmer, "make_backend", lambda name, **options: backend)
    return backend


def test_what_was_pulled_is_compiled_and_what_is_ready_is_not(url, tmp_path):
    fill_store(tmp_path)
    assert get_output("warm", str(tmp_path), "--dry-run") == "would compile 2 of 2 templates; 0 are ready\n"
    assert call("push", url, "--dir", str(tmp_path)).exit_code == 0
    assert get_output("pull", url).startswith("pulled 2 entries in 1 pack")
    assert get_output("warm", "--jobs", "1").startswith("compiled 2 of 2 templates in ")
    assert len(Store.open().entries()) == 4
    assert get_output("warm", "--jobs", "1").endswith(" s; 2 were ready\n")


def test_what_is_left_out_is_said_and_what_fails_is_an_error_and_tried_again(tmp_path, here):
    fill_store(tmp_path)
    here.refuse = "no such kernel"
    result = call("warm", str(tmp_path), "--jobs", "1")
    assert (result.exit_code, result.stderr) == (0, "left out 2: cannot be stored: no such kernel\n")
    here.refuse, here.error = None, RuntimeError()
    fill_store(tmp_path / "other")
    result = call("warm", str(tmp_path / "other"), "--jobs", "1")
    assert (result.exit_code, result.stderr) == (1, "left out 2: failed: RuntimeError\n")
    assert result.stdout.startswith("compiled 0 of 2 templates in ")
    here.error = None
    assert get_output("warm", str(tmp_path / "other"), "--jobs", "1").startswith("compiled 2 of 2 templates in ")
