"""What a terminal is sent: fitted tables, and colours where they are wanted."""

import os
import pty
import re
import subprocess
import sys

import pytest
from commands import CAST, CHAIN, get_output, save_run
from repository import ROOT
from signing_keys import make_signing_key
from store_contents import save

from fusioncache.cli.console import Column, format_table
from fusioncache.observe.record.database import RecordReader

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
