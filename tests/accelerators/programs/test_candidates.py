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


def keep(store: Store, number: int, unfit: tuple[str, ...] = (), text: int | None = None) -> bool:
    text_ = make_text(number if text is None else text)
    return keep_program(store, KEY, text_, make_reads(number), name="Model", seconds=number, unfit=unfit)


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
    assert store.entry(KEY.digest, "program").name == "Model"


def test_programs_with_other_reads_have_slots_of_their_own(store):
    assert all(keep(store, number) for number in range(4))
    assert found(store) == list(zip(PROGRAM_SLOTS, range(4), strict=True))


def test_a_program_with_the_same_reads_is_there_already(store):
    assert keep(store, 1) and not keep(store, 1, text=2)
    assert found(store) == [("program", 1)]


def test_a_program_that_did_not_fit_is_not_the_same(store):
    assert keep(store, 1) and keep(store, 1, unfit=("program",), text=2)
    assert found(store) == [("program", 1), ("program-1", 2)]


def test_the_oldest_goes_when_all_slots_are_taken(store):
    assert all(keep(store, number) for number in range(6))
    assert found(store) == [("program", 4), ("program-1", 5), ("program-2", 2), ("program-3", 3)]


@pytest.mark.parametrize("artifact", ["program", "reads"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":999}', None])
def test_what_does_not_decode_is_removed(store, artifact, content):
    assert keep(store, 1)
    artifacts = dict(store.load(KEY, "program"))
    store.remove(KEY, "program")
    artifacts[artifact] = content
    store.save(KEY, "program", {name: each for name, each in artifacts.items() if each is not None})
    with pytest.warns(RuntimeWarning, match="a stored program that does not decode"):
        assert keep(store, 2)
    assert found(store) == [("program", 2)]


def test_killed_at_every_step_of_keeping(tmp_path, monkeypatch):
    """Whoever comes next finds the whole program or none, and can keep it."""
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


def test_bytecode_is_kept_beside_and_may_be_missing(store):
    assert keep(store, 1)
    (candidate,) = find_candidates(store, KEY)
    assert candidate.bytecode.startswith(b"fusioncache bytecode ")
    artifacts = dict(store.load(KEY, "program"))
    store.remove(KEY, "program")
    del artifacts["bytecode"]
    store.save(KEY, "program", artifacts)
    (candidate,) = find_candidates(store, KEY)
    assert candidate.bytecode is None


def exchange_artifacts(store: Store, name: str) -> None:
    """Writes two programs again, each with this artifact of the other one."""
    loaded = {slot: dict(store.load(KEY, slot)) for slot in PROGRAM_SLOTS[:2]}
    for slot, other in zip(PROGRAM_SLOTS[:2], reversed(PROGRAM_SLOTS[:2]), strict=True):
        store.remove(KEY, slot)
        assert store.save(KEY, slot, {**loaded[slot], name: loaded[other][name]})


def test_bytecode_of_another_program_is_not_used(store):
    assert keep(store, 1) and keep(store, 2)
    exchange_artifacts(store, "bytecode")
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
    store.remove(KEY, "program")
    store.save(KEY, "program", {"region": b"{}", "request": b"{}", "recipe": b"{}"})
    with pytest.warns(RuntimeWarning, match="a stored program that does not decode: KeyError"):
        assert found(store) == []
    assert keep(store, 1) and found(store) == [("program", 1)]


@pytest.mark.parametrize("artifact", ["bytecode", "regions"])
def test_what_is_for_speed_or_for_people_may_be_of_any_format(store, artifact):
    """The program is loaded: who reads these says what to do without."""
    artifacts = {"program": encode(make_text(1)), "reads": encode_reads(make_reads(1)), artifact: b"of a later format"}
    assert store.save(KEY, "program", artifacts)
    assert found(store) == [("program", 1)]


def test_an_artifact_that_goes_while_others_are_read_is_a_program_less(store):
    assert all(keep(store, number) for number in range(3))
    candidates = find_candidates(store, KEY)
    assert next(candidates).slot == "program"
    find_object(store, encode(make_text(1))).unlink()
    with collect_warnings():
        assert list(candidates) == []
    assert keep(store, 1) and len(found(store)) == 3
