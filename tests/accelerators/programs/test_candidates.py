"""Several programs with one key: the order of slots, which count as equal, and which is removed if all are taken."""

import os
import signal
from functools import partial

import pytest
from pool_processes import wait_until
from store_contents import fork, kill_at, make_numbered_key, wait_for

from fusioncache.accelerators.programs import programs
from fusioncache.accelerators.programs.programs import find_candidates, store_program
from fusioncache.accelerators.programs.text import ProgramText, Read, TraceText
from fusioncache.store import Store
from fusioncache.store.entry import PROGRAM_SLOTS

KEY = make_numbered_key(1)


def make_text(number: int) -> ProgramText:
    """Returns a program whose functions return its number."""
    traces = [
        TraceText(name, f"def {name}():\n  return {number}\n") for name in ("prologue", "computation", "epilogue")
    ]
    return ProgramText(traces[0], traces[1], None, traces[2])


def make_reads(number: int) -> tuple[Read, ...]:
    return Read("variable", "HOME", "1"), Read("variable", "NUMBER", str(number))


def save(store: Store, number: int, unfit: tuple[str, ...] = (), reads: int | None = None) -> bool:
    found = make_reads(number if reads is None else reads)
    return store_program(store, KEY, make_text(number), found, name="Model", seconds=number, unfit=unfit)


def exchange(store: Store, slot: str, **artifacts: bytes | None) -> None:
    """Writes a slot again with some artifacts replaced; None leaves one out."""
    loaded = {**store.load(KEY, slot), **artifacts}
    store.remove(KEY, slot)
    assert store.save(KEY, slot, {name: each for name, each in loaded.items() if each is not None})


def found(store: Store) -> list[tuple[str, int]]:
    """Returns the slot and the number of each candidate, in their order."""
    candidates = find_candidates(store, KEY)
    return [(each.slot, int(each.text.prologue.source.split()[-1])) for each in candidates]


def test_programs_with_other_reads_or_that_did_not_fit_have_slots_until_the_oldest_goes(store):
    assert save(store, 1) and not save(store, 2, reads=1)
    assert found(store) == [("program", 1)]
    assert save(store, 2, reads=1, unfit=("program",)) and save(store, 3) and save(store, 4)
    assert found(store) == list(zip(PROGRAM_SLOTS, [1, 2, 3, 4], strict=True))
    assert save(store, 5) and save(store, 6)
    assert found(store) == list(zip(PROGRAM_SLOTS, [5, 6, 3, 4], strict=True))


def test_programs_behind_a_free_slot_are_found_and_not_stored_twice(store):
    assert save(store, 1) and save(store, 2) and save(store, 3)
    store.remove(KEY, "program")
    assert found(store) == [("program-1", 2), ("program-2", 3)]
    assert not save(store, 3)
    assert save(store, 4) and found(store) == [("program", 4), ("program-1", 2), ("program-2", 3)]


BROKEN = [{artifact: content} for artifact in ("program", "reads") for content in (b"", b"{}", b'{"format":999}', None)]
OF_ANOTHER = {"region": b"{}", "program": None, "reads": None, "bytecode": None}


@pytest.mark.parametrize("artifacts", [*BROKEN, OF_ANOTHER], ids=str)
def test_what_does_not_decode_is_removed(store, artifacts):
    assert save(store, 1)
    exchange(store, "program", **artifacts)
    with pytest.warns(RuntimeWarning, match="a stored program that does not decode"):
        assert found(store) == []
    assert save(store, 2) and found(store) == [("program", 2)]


@pytest.mark.parametrize("artifact", ["bytecode", "regions"])
@pytest.mark.parametrize("content", [b"of a later format", None])
def test_what_is_for_speed_or_for_people_may_be_of_any_format_or_missing(store, artifact, content):
    assert save(store, 1)
    exchange(store, "program", **{artifact: content})
    (candidate,) = find_candidates(store, KEY)
    assert candidate.text == make_text(1) and candidate.reads == make_reads(1)
    assert artifact == "regions" or candidate.bytecode == content


def test_a_process_killed_at_any_step_of_keeping_leaves_the_whole_program_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # still a step
    status, step = -signal.SIGKILL, 0
    while status == -signal.SIGKILL:
        step += 1
        path = tmp_path / str(step)

        def work(path=path, step=step):
            kill_at(step, monkeypatch)
            save(Store.open(path), 1)

        status = wait_for(fork(work))
        store = Store.open(path)
        before = found(store)
        assert before in ([], [("program", 1)])
        assert save(store, 1) is not bool(before)
        assert found(store) == [("program", 1)]
    assert step > 20


def test_processes_that_keep_at_once_keep_each_program_once(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "WRITE_SECONDS", 240.0)

    def work(number: int) -> None:
        store = Store.open(tmp_path / "store")
        (tmp_path / f"ready-{number}").touch()
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 8)
        if save(store, number % 3):
            (tmp_path / f"kept-{number}").touch()

    assert [wait_for(child) for child in [fork(partial(work, number)) for number in range(8)]] == [0] * 8
    store = Store.open(tmp_path / "store")
    assert sorted(number for _, number in found(store)) == [0, 1, 2]
    assert len(list(tmp_path.glob("kept-*"))) == 3
