"""Commands with random arguments, and a record and a store with random damage: each gives an answer or a message."""

import os
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import CHAIN, call, save_two_runs
from saved_programs import SavedProgram
from store_contents import make_numbered_key
from store_contents import save as fill

from fusioncache.cli.main import COMMANDS, main
from fusioncache.store import Store, transport

_PROGRAMS = (SavedProgram(), SavedProgram({"model": "model module mine.Llama"}))
_TRIES = 60
_QUIET = {"report", "graph"}
"""Commands that write a file to a given path."""
_VALUES = [
    *("", "-", "--", "a", "ab", "nosuch", "/etc/passwd", ".", "~", "\udcff", "%", "a" * 5000, "\n", "train.py"),
    *("0", "-1", "1", "9" * 23, "nan", "inf", "1GiB", "30d", "residual", "eager", "seconds", "hits"),
    *("memory://x", "file://", "file:///no/where", "nothing://x", "://", "http://[", "http:/x", "data:,x"),
    *("http://127.0.0.1:1/x", "dir://x", "reference://", CHAIN.key.digest, CHAIN.key.digest[:4]),
    *("Llama", "forward", *(program.make_key().digest for program in _PROGRAMS)),
]
"""None of them is a folder outside of the test's directory that could be written."""
_NOT_WAITED_FOR = ("--open", "--definition")


def _damage(directory: Path, chance: random.Random) -> None:
    """Damages, replaces or removes up to three files."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in chance.sample(files, chance.randrange(4)):
        content = path.read_bytes()
        path.unlink()
        what = chance.choice(["gone", "folder", "link", "others", "empty", "noise", "half", "other end"])
        if what == "folder":
            path.mkdir()
        elif what == "link":
            path.symlink_to(directory / "nowhere")
        elif what != "gone":
            spoiled = {"empty": b"", "noise": chance.randbytes(200), "half": content[: len(content) // 2]}
            path.write_bytes(spoiled.get(what, content[:-1] + b"?" if what == "other end" else content))
            path.chmod(0o666 if what == "others" else 0o600)


def _arguments(chance: random.Random) -> Iterator[str]:
    name = chance.choice(sorted(COMMANDS.keys() - _QUIET))
    command = main.get_command(click.Context(main), name)
    assert command is not None
    yield name
    for param in command.params:
        if isinstance(param, click.Option):
            if chance.random() < 0.25 and param.opts[0] not in _NOT_WAITED_FOR:
                yield chance.choice(param.opts)
                if not param.is_flag:
                    yield chance.choice(_VALUES)
        elif chance.random() < 0.8:
            yield chance.choice(_VALUES)


@pytest.mark.parametrize("seed", range(3))
def test_no_command_ends_in_a_traceback(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(transport, "PAUSES", (0.0,))
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "kept"))
    save_two_runs(monkeypatch)
    store = Store.open()
    fill(store, 1, 2, 3)
    assert store.save(make_numbered_key(4), "inductor", {"refused": b"a reason"})
    for program in _PROGRAMS:
        program.save(store)
    chance = random.Random(seed)
    for number in range(_TRIES):
        copy, work = tmp_path / f"copy{number}", tmp_path / f"work{number}"
        work.mkdir()
        monkeypatch.chdir(work)
        monkeypatch.setenv("HOME", str(work))
        monkeypatch.setenv("FUSIONCACHE_DIR", str(copy))
        if chance.random() < 0.9:
            shutil.copytree(tmp_path / "kept", copy)
            _damage(copy, chance)
        arguments = list(_arguments(chance))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call(*arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
        assert result.exit_code == 0 or result.output, arguments
        assert os.listdir(work) == [] or arguments[0] in ("pack", "push", "pull"), arguments
        assert not os.path.lexists("~"), arguments
