"""Golden files: calls of commands on a record and a store that are always the same, with what each prints."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from commands import CAST, CHAIN, call, make_run_ledger, save_other
from kept_programs import OTHER_SILU, OWN_SILU, SILU, SavedProgram
from long_names import fill_long_store, record_long_runs
from recorded_templates import STARTED, count_compile, count_load, make_cast_template, save_ledger
from signing_keys import make_signing_key

from fusioncache.accelerators.programs.text import Read, encode_reads
from fusioncache.accelerators.sizes.families import PassJournal, encode_outline
from fusioncache.accelerators.sizes.journal import Look
from fusioncache.accelerators.sizes.sizes import Number
from fusioncache.cache.exchange import push
from fusioncache.cache.packing import save_pack
from fusioncache.ir import Graph
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import Alone
from fusioncache.store import Store, default_path
from fusioncache.store import store as store_module
from fusioncache.store.remote import Remote
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline

NOW = STARTED + 3 * 86400
_SETTINGS = "torch.default_dtype float32\ntorch.num_threads {}\ntorch.deterministic 0"
_NEW = make_cast_template("cast_new", "nvfuser=0.2.37")
_PROGRAM = SavedProgram()
_CHANGED = SavedProgram({"model": _PROGRAM.texts["model"].replace("1e-05", "1e-06")})
_OTHER_READS = SavedProgram(reads=(("attribute", SILU, OTHER_SILU), ("global", "mine.EPS", "1e-05")), slot="program-1")
_GPT = SavedProgram({"model": "model module mine.GPT"}, name="GPT", seconds=4.0)
CI = make_signing_key("ci")
FULL, PULLED, EMPTY = "a record of two runs, and a store", "a store without a record, as after a pull", "nothing"
LONG = "long names, and lists that are long"
"""What there is where commands look: the headings of a golden file."""
_FOLDERS = {FULL: "own", PULLED: "own", LONG: "long"}
"""Where it was prepared."""

_HEADING, _CALL, _ERROR = "## ", "$ ", "! "
"""How lines begin that say what there is, what is called, and what went to stderr."""


class Stage:
    """A folder in which commands are called. Its name always has the same length, because lines are broken by that.

    Args:
        prepared: copies of directories with records and stores, and of a remote.
        words: for each of these what the words in capitals stand for that golden files have in place of IDs.
        patch: sets and restores the environment.
    """

    def __init__(self, prepared: Path, words: Mapping[str, Mapping[str, str]], patch: pytest.MonkeyPatch):
        self._prepared, self._words, self._patch, self._there = prepared, words, patch, EMPTY
        self._folder = Path(mkdtemp(prefix="golden-", dir="/tmp"))

    def render(self, golden: str, columns: int) -> str:
        """Returns a golden file as it should be: its headings and calls, with what they print now.

        Args:
            golden: the file as it is.
            columns: of the terminal.
        """
        self._patch.setenv("COLUMNS", str(columns))
        parts = []
        for line in golden.splitlines():
            if line.startswith(_HEADING):
                self._lay(line.removeprefix(_HEADING))
                parts.append(line)
            elif line.startswith(_CALL):
                parts.append("\n".join([line, *self._call(shlex.split(line.removeprefix(_CALL))[1:])]))
        return "\n\n".join(parts) + "\n"

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self._folder)

    def _lay(self, there: str) -> None:
        self._there = there
        for path in self._folder.iterdir():
            shutil.rmtree(path)
        work, own = self._folder / "work", self._folder / "fusioncache"
        work.mkdir()
        (work / "x.dot").write_text("digraph { }\n")
        self._patch.chdir(work)
        self._patch.setenv("FUSIONCACHE_DIR", str(own))
        shutil.copytree(self._prepared / "remote", self._folder / "remote")
        if there != EMPTY:
            shutil.copytree(self._prepared / _FOLDERS[there], own, copy_function=shutil.copy2)
        if there == PULLED:
            for file in own.glob("record-*"):
                file.unlink()

    def _call(self, words: Sequence[str]) -> list[str]:
        remote = self._folder / "remote"
        places = {"STORE": str(default_path()), "REMOTE": str(remote), "PACK": str(remote / "pack")}
        known = {**self._words.get(_FOLDERS.get(self._there, ""), {}), **places}
        result = call(*(known.get(word, word) for word in words))
        lines = [*result.stdout.splitlines(), *(f"{_ERROR}{line}" for line in result.stderr.splitlines())]
        lines += [f"exit {result.exit_code}"] if result.exit_code else []
        return [self._normalize(line).rstrip() for line in lines]

    def _normalize(self, line: str) -> str:
        line = line.replace(str(self._folder), "/tmp/golden-12345678")
        line = re.sub(r"\b(torch/nn/functional\.py):\d{4}\b", r"\1:1234", line)
        line = re.sub(r'"seconds": \d+\.\d{6,}', '"seconds": 0.1', line)
        return re.sub(r" in \d+\.\d s;", " in 0.1 s;", line)


@contextmanager
def set_stage(folder: Path) -> Iterator[Stage]:
    """Yields a stage in which it is always the same time of the same day.

    Args:
        folder: an empty one, for the copies.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.setenv("PATH", "")
        patch.setenv("FUSIONCACHE_SIGNING_KEY", CI.text)
        time.tzset()
        patch.setattr(time, "time", lambda: NOW)
        words = _prepare(folder, patch)
        stage = Stage(folder, words, patch)
        try:
            yield stage
        finally:
            stage.close()
    time.tzset()


def _prepare(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Fills the folder, and returns for each record and store in it IDs of what they have."""
    with patch.context() as fixed:
        # They are parts of entries, whose sizes are printed.
        fixed.setattr(store_module, "get_host", lambda: "host")
        fixed.setattr(store_module.os, "getpid", lambda: 4321)
        fixed.setenv("FUSIONCACHE_DIR", str(folder / "own"))
        _record_runs(fixed)
        own = _open_store(_fill_store)
        push(Store.open(), Remote(str(folder / "remote")), key=CI)
        save_pack(Store.open(), folder / "remote" / "pack", model="GPT", key=CI)
        fixed.setenv("FUSIONCACHE_DIR", str(folder / "long"))
        record_long_runs(fixed)
        return {"own": own, "long": _open_store(fill_long_store)}


def _open_store(fill: Callable[[Store], dict[str, str]]) -> dict[str, str]:
    """Fills the store, all of which is an hour old then, and returns the IDs of what is in it."""
    store = Store.open()
    words = fill(store)
    directory = store.directory
    assert directory is not None
    for file in directory.rglob("*"):
        os.utime(file, (NOW - 3600, NOW - 3600))
    return words


def _record_runs(patch: pytest.MonkeyPatch) -> None:
    """Records a run that counted something of everything, and a later one of another script."""
    ledger = make_run_ledger()
    ledger.history.begin_trace("GPT")
    for phase, seconds in (("tracing", 0.5), ("fusing", 0.25)):
        ledger.history.add_seconds(phase, seconds)
    _count_sizes(ledger)
    _count_programs(ledger)
    ledger.count("verify_compiles")
    ledger.count("verify_compile_seconds", 0.25)
    ledger.count("verified")
    save_ledger(patch, ledger)
    _record_later_run(patch)


def _count_sizes(ledger: Ledger) -> None:
    ledger.count("generalizations")
    for seconds in (0.0, 0.5):
        ledger.count_general_hit(CHAIN, Alone(seconds, seconds))
    ledger.count("own_sizes", of="random numbers")


def _count_programs(ledger: Ledger) -> None:
    for part, seconds in (("key", 0.25), ("load", 0.125), ("reads", 0.0625), ("record", 0.5)):
        ledger.count("program_seconds", seconds, of=part)
    ledger.count_program_loaded("GPT", 0.4375, 38.5)
    ledger.emit("program made", model="GPT")
    ledger.emit("program refused", reason="a lock has no value to compare")
    ledger.emit("program replayed", model="GPT")
    ledger.emit("program filled", model="GPT")
    ledger.count("passes_repeated", of="two rows so far")
    ledger.count("programs_interpreted", of="model.py:7 compares: x < 100")
    ledger.count("captures")
    ledger.count("graph_replays")
    ledger.count("not_captured", of="random numbers")


def _record_later_run(patch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    for template in (CAST, _NEW):
        ledger.count_region(template, (), hit=False)
    ledger.count_region(_NEW, (), hit=True)
    count_compile(ledger, _NEW, 1.0)
    count_load(ledger, CAST, 0.004, 0.125)
    ledger.count_program_loaded("Llama", 0.5, 38.5)
    ledger.emit("program refused", reason="reads the time")
    save_other(patch, ledger)


def _fill_store(store: Store) -> dict[str, str]:
    def compile_(graph: Graph, threads: int, **artifacts: bytes) -> str:
        environment = {"backend": "eager", "settings": _SETTINGS.format(threads), "versions": "torch 2.10.0"}
        key = make_key(graph, environment)
        name = f"{'convert' if graph is CAST.graph else 'residual_tanh'}_{key.digest[:8]}"
        assert store.save(key, "eager", artifacts, name=name, seconds=1.5)
        return key.digest[:12]

    def derive(program: SavedProgram) -> str:
        return program.save(store)[:12]

    words = {
        "EXECUTABLE": compile_(CAST.graph, 2, code=b"print()\n"),
        "THREADS": compile_(CAST.graph, 4, code=b"print(4)\n"),
        "NOTE": compile_(inline(CHAIN.graph, (2,)), 2, refused=b"a number among its inputs"),
        "PROGRAM": f"{derive(_PROGRAM)}-0",
        "CHANGED": derive(_CHANGED),
        "GPT": derive(_GPT),
        "FAMILY": _derive_family(store),
    }
    derive(_OTHER_READS)
    return words


def _derive_family(store: Store) -> str:
    rows, length = Number(1, "args[0][0]"), Number(2, "args[0][1]")
    look = Look(">", length, 100, False, "compares", "model.py:12")
    passes = PassJournal(((0, (rows, length)),), (look,), (), (), (rows, length))
    outline = encode_outline(passes, [{0: (2, 64)}, {0: (2, 96)}])
    reads = encode_reads([Read("attribute", SILU, OWN_SILU)])
    key = SavedProgram({"arguments": "args 1 mask"}).make_key()
    assert store.save(key, "family", {"family": outline, "reads": reads}, name="Llama")
    return key.digest[:12]
