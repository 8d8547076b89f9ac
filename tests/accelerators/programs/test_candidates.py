"""Several programs with one key: the order of slots, what counts as the same, and what goes when all are taken."""

import os
import signal
from functools import partial

import pytest
from pool_processes import wait_until
from store_contents import collect_warnings, find_object, fork, kill_at, make_numbered_key, wait_for

from fusioncache.accelerators.programs import programs
from fusioncache.accelerators.programs.build import decode_code
from fusioncache.accelerators.programs.programs import find_candidates, keep_program
from fusioncache.accelerators.programs.text import ProgramText, Read, TraceText, encode, encode_reads
from fusioncache.store import Store
from fusioncache.store.entry import PROGRAM_SLOTS

KEY = make_numbered_key(1)


def make_text(number: int) -> ProgramText:
    """A program that says its number."""
    traces = [
        TraceText(name, f"def {name}():\n  return {number}\n") for name in ("prologue", "computation", "epilogue")
    ]
    return ProgramText(traces[0], traces[1], None, traces[2])


def make_reads(number: int) -> tuple[Read, ...]:
    return Read("variable", "HOME", "1"), Read("variable", "NUMBER", str(number))


def keep(store: Store, number: int, unfit: tuple[str, ...] = (), reads: int | None = None) -> bool:
    found = make_reads(number if reads is None else reads)
    return keep_program(store, KEY, make_text(number), found, name="Model", seconds=number, unfit=unfit)


def exchange(store: Store, contents: dict[str, dict[str, bytes | None]]) -> None:
    """Writes slots again with other artifacts; None leaves one out."""
    loaded = {slot: {**store.load(KEY, slot), **others} for slot, others in contents.items()}
    for slot, artifacts in loaded.items():
        store.remove(KEY, slot)
        assert store.save(KEY, slot, {name: each for name, each in artifacts.items() if each is not None})


def found(store: Store) -> list[tuple[str, int]]:
    """The slot and the number of each candidate, in their order."""
    candidates = find_candidates(store, KEY)
    return [(each.slot, int(each.text.prologue.source.split()[-1])) for each in candidates]


def test_a_program_comes_back(store):
    assert keep(store, 3)
    (candidate,) = find_candidates(store, KEY)
    assert candidate.text == make_text(3)
    assert candidate.reads == make_reads(3)
    assert (candidate.slot, candidate.seconds) == ("program", 3.0)
    assert candidate.bytecode.startswith(b"fusioncache bytecode ")
    assert store.entry(KEY.digest, "program").name == "Model"


def test_programs_with_other_reads_or_that_did_not_fit_have_slots_until_the_oldest_goes(store):
    assert keep(store, 1) and not keep(store, 2, reads=1)
    assert found(store) == [("program", 1)]
    assert keep(store, 2, reads=1, unfit=("program",)) and keep(store, 3) and keep(store, 4)
    assert found(store) == list(zip(PROGRAM_SLOTS, [1, 2, 3, 4], strict=True))
    assert keep(store, 5) and keep(store, 6)
    assert found(store) == list(zip(PROGRAM_SLOTS, [5, 6, 3, 4], strict=True))


@pytest.mark.parametrize("artifact", ["program", "reads"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":999}', None])
def test_what_does_not_decode_is_removed(store, artifact, content):
    assert keep(store, 1)
    exchange(store, {"program": {artifact: content}})
    with pytest.warns(RuntimeWarning, match="a stored program that does not decode"):
        assert keep(store, 2)
    assert found(store) == [("program", 2)]


@pytest.mark.parametrize("artifact", ["bytecode", "regions"])
@pytest.mark.parametrize("content", [b"of a later format", None])
def test_what_is_for_speed_or_for_people_may_be_of_any_format_or_missing(store, artifact, content):
    assert keep(store, 1)
    exchange(store, {"program": {artifact: content}})
    assert found(store) == [("program", 1)]
    (candidate,) = find_candidates(store, KEY)
    assert artifact == "regions" or candidate.bytecode == content


def test_killed_at_every_step_of_keeping(tmp_path, monkeypatch):
    """The next process finds the whole program or none, and can keep it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # still a step
    steps, complete = 0, False
    while not complete:
        steps += 1
        path = tmp_path / str(steps)

        def work(path=path, step=steps):
            kill_at(step, monkeypatch)
            keep(Store.open(path), 1)

        complete = wait_for(fork(work)) != -signal.SIGKILL
        store = Store.open(path)
        before = found(store)
        assert before in ([], [("program", 1)])
        assert keep(store, 1) is not bool(before)
        assert found(store) == [("program", 1)]
    assert steps > 20


def test_processes_that_keep_at_once_keep_each_program_once(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "WRITE_SECONDS", 240.0)

    def work(number: int) -> None:
        store = Store.open(tmp_path / "store")
        (tmp_path / f"ready-{number}").touch()
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 8)
        if keep(store, number % 3):
            (tmp_path / f"kept-{number}").touch()

    assert [wait_for(child) for child in [fork(partial(work, number)) for number in range(8)]] == [0] * 8
    store = Store.open(tmp_path / "store")
    assert sorted(number for _, number in found(store)) == [0, 1, 2]
    assert len(list(tmp_path.glob("kept-*"))) == 3


def test_bytecode_of_another_program_is_not_used(store):
    assert keep(store, 1) and keep(store, 2)
    one, other = (dict(store.load(KEY, slot))["bytecode"] for slot in PROGRAM_SLOTS[:2])
    exchange(store, {PROGRAM_SLOTS[0]: {"bytecode": other}, PROGRAM_SLOTS[1]: {"bytecode": one}})
    for candidate in find_candidates(store, KEY):
        with pytest.raises(ValueError, match="no code of this program"):
            decode_code(candidate.bytecode, candidate.text)


def test_files_of_two_programs_that_changed_places_are_used_by_none(store):
    """An entry names its artifacts by what is in them, so that there is no mixture."""
    assert keep(store, 1) and keep(store, 2)
    files = [find_object(store, encode_reads(make_reads(number))) for number in (1, 2)]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, reversed(contents), strict=True):
        file.chmod(0o644)
        file.write_bytes(content)
    with collect_warnings() as said:
        assert found(store) == []
    assert len(said) == 1


def test_an_entry_of_something_else_is_no_program(store):
    assert keep(store, 2)
    exchange(store, {"program": {"region": b"{}", "program": None, "reads": None, "bytecode": None}})
    with pytest.warns(RuntimeWarning, match="a stored program that does not decode: KeyError"):
        assert found(store) == []
    assert keep(store, 1) and found(store) == [("program", 1)]


def test_an_artifact_that_goes_while_others_are_read_is_a_program_less(store):
    assert all(keep(store, number) for number in range(3))
    candidates = find_candidates(store, KEY)
    assert next(candidates).slot == "program"
    find_object(store, encode(make_text(1))).unlink()
    with collect_warnings():
        assert list(candidates) == []
    assert keep(store, 1) and len(found(store)) == 3
