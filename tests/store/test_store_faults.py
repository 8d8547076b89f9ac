"""With any fault of a store, a load returns what was saved for its key or nothing, and nothing is raised."""

import errno
import os
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from store_contents import (
    BACKEND,
    age_entry,
    collect_warnings,
    drop_root,
    find_entry,
    find_litter,
    find_object,
    find_present,
    fork,
    kill_at,
    load,
    make_artifacts,
    make_numbered_key,
    save,
    wait_for,
)
from threads_at_once import run_at_once

from fusioncache.store import Store, StoreError, check, default_path, directory, disk, entry, locks
from fusioncache.store.locks import FileLock

ROOT = os.geteuid() == 0


def _assert_memory_only(message: str, path: Path | None = None) -> None:
    """Asserts that opening warns once, touches no file, and returns a store that stays empty."""
    with collect_warnings() as messages:
        store = Store.open(path)
    assert len(messages) == 1
    assert message in messages[0]
    assert store.directory is None
    with collect_warnings() as messages:
        assert not store.save(make_numbered_key(1), BACKEND, make_artifacts(1))
        assert not load(store, 1)
        with store.take_turn(make_numbered_key(2), BACKEND) as turn:
            assert (turn.artifacts, turn.lock_problem) == (None, None)
        assert (store.entries(), store.sweep()) == ((), None)
        store.discard(make_numbered_key(1), BACKEND, "no good")
    assert len(messages) == 1
    assert store.bypasses == {"no directory": 1, "no good": 1}


@pytest.mark.parametrize("damaged", [False, True], ids=["new", "damaged"])
def test_killed_at_every_step_of_saving(tmp_path, monkeypatch, damaged):
    steps, complete = 0, False
    while not complete:
        steps += 1
        path = tmp_path / str(steps)
        if damaged:
            store = Store.open(path)
            save(store, 7, 1, 9)
            age_entry(store, 9, 100 * 86400)  # so that a sweep removes it
            for file in (find_entry(store, 1), find_object(store, make_artifacts(1)["code"])):
                file.write_bytes(b"half")

        def work(path=path, step=steps):
            kill_at(step, monkeypatch)
            store = Store.open(path)
            with store.take_turn(make_numbered_key(1), BACKEND):
                save(store, 1)
            load(store, 1)
            if damaged:
                store.sweep()

        complete = wait_for(fork(work)) != -signal.SIGKILL
        store = Store.open(path)
        assert store.directory == path
        with collect_warnings():
            load(store, 1)
            assert load(store, 7) == damaged
            with store.take_turn(make_numbered_key(1), BACKEND, timeout=0.0) as turn:
                assert turn.lock_problem is None
                assert turn.artifacts or store.save(make_numbered_key(1), BACKEND, make_artifacts(1))
        assert load(store, 1)
        for file in path.glob("tmp-*"):
            os.utime(file, (0, 0))
        store.sweep()
        assert find_litter(path) == []
        assert os.listdir(path / "locks") == ["store"]
        assert load(store, 1)
        shutil.rmtree(path)
    assert steps > 20


def test_a_turn_is_free_when_its_process_is_killed_also_if_it_had_forked(store):
    ready, tell = os.pipe()
    wait, end = os.pipe()

    def child():
        os.close(end)
        os.write(tell, b"%d" % os.getpid())
        os.read(wait, 1)

    def work():
        with Store.open().take_turn(make_numbered_key(2), BACKEND):
            wait_for(fork(child))

    parent = fork(work)
    grandchild = int(os.read(ready, 20))
    with collect_warnings(), store.take_turn(make_numbered_key(2), BACKEND, timeout=0.01) as turn:
        assert turn.lock_problem
    os.kill(parent, signal.SIGKILL)
    wait_for(parent)
    os.kill(grandchild, 0)  # still there
    with store.take_turn(make_numbered_key(2), BACKEND, timeout=0.0) as turn:
        assert turn.lock_problem is None
    os.close(end)


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    first, second, third = (FileLock(tmp_path / "lock", removes_file=True) for _ in range(3))
    assert first.acquire(0.0)
    real = locks.fcntl.flock

    def late(descriptor, mode):
        monkeypatch.setattr(locks.fcntl, "flock", real)
        first.release()
        assert second.acquire(0.0)
        real(descriptor, mode)

    monkeypatch.setattr(locks.fcntl, "flock", late)
    assert not third.acquire(0.0)
    second.release()
    assert third.acquire(0.0)
    third.release()


def test_an_entry_that_is_replaced_while_somebody_cleans_up_keeps_what_it_needs(store, monkeypatch):
    save(store, 1)
    other, real = Store.open(), disk.hold_exclusively

    def late(path):
        with collect_warnings():
            other.discard(make_numbered_key(1), BACKEND, "no good")
        assert other.save(make_numbered_key(1), BACKEND, {"code": b"another"})
        return real(path)

    monkeypatch.setattr(disk, "hold_exclusively", late)
    assert store.sweep().objects == 3
    assert store.load(make_numbered_key(1), BACKEND) == {"code": b"another"}


def test_eight_processes_with_eight_threads_compile_each_key_once(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "LOCK_SECONDS", 240.0)  # on a busy machine others may have a lock for long
    path, counter, keys = tmp_path / "store", tmp_path / "compiled", range(6)

    def compile_(number):
        with open(counter, "ab", buffering=0) as file:
            file.write(b"%d\n" % number)
        time.sleep(0.002)
        return make_artifacts(number)

    def use(store, seed):
        for number in random.Random(seed).sample(keys, len(keys)):
            found = store.load(make_numbered_key(number), BACKEND)
            if found is None:
                with store.take_turn(make_numbered_key(number), BACKEND) as turn:
                    found = turn.artifacts
                    if found is None:
                        found = compile_(number)
                        assert store.save(make_numbered_key(number), BACKEND, found)
            assert dict(found) == make_artifacts(number)

    def work(seed):
        store = Store.open(path)
        run_at_once(*(partial(use, store, 8 * seed + thread) for thread in range(8)))
        assert not store.bypasses

    children = [fork(partial(work, seed)) for seed in range(8)]
    assert [wait_for(child) for child in children] == [0] * 8
    assert sorted(counter.read_text().split()) == [str(number) for number in keys]


def test_processes_that_save_load_and_clean_up_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "LOCK_SECONDS", 240.0)
    path, bound = tmp_path / "store", 80_000

    def work(seed):
        chance, store, loaded = random.Random(seed), Store.open(path, max_bytes=bound), 0
        for _ in range(80):
            number = chance.randrange(60)
            store.save(make_numbered_key(number), BACKEND, make_artifacts(number))
            loaded += load(store, number)
            if chance.random() < 0.05:
                store.sweep()
        assert loaded
        assert set(store.bypasses) <= {
            locks.UNANSWERED,
            "cannot clean up while others save",
            "an entry without its artifacts",  # it was removed and saved again while it was read
        }

    assert [wait_for(child) for child in [fork(partial(work, seed)) for seed in range(4)]] == [0] * 4
    store = Store.open(path)
    found = [number for number in range(60) if load(store, number)]
    assert not store.bypasses
    assert found == find_present(store, *range(60))
    assert Store.open(path, max_bytes=bound).sweep().bytes_left <= bound


def test_a_forked_child_uses_the_store_as_a_process_of_its_own(store):
    save(store, 1, 2)
    with collect_warnings():
        store.discard(make_numbered_key(1), BACKEND, "no good")
    with store.take_turn(make_numbered_key(3), BACKEND):

        def work():
            assert load(store, 2)
            with collect_warnings(), store.take_turn(make_numbered_key(3), BACKEND, timeout=0.05) as turn:
                assert turn.lock_problem
            save(store, 4)
            assert store.bypasses == {locks.TOO_LONG: 1}

        assert wait_for(fork(work)) == 0
        with collect_warnings(), Store.open().take_turn(make_numbered_key(3), BACKEND, timeout=0.0) as turn:
            assert turn.lock_problem  # the turn is still the parent's
    assert load(store, 4)
    assert store.bypasses == {"no good": 1}


def test_saves_and_loads_wait_once_for_a_holder_that_is_stopped(store, monkeypatch):
    clock = SimpleNamespace(slept=0.0, monotonic=lambda: clock.slept)  # time passes only in sleep
    clock.sleep = lambda seconds: setattr(clock, "slept", clock.slept + seconds)
    monkeypatch.setattr(locks, "time", clock)
    save(store, 1, 2, 3)
    holder = FileLock(store.directory / "locks" / "store")  # file locks treat this process as any other
    assert holder.acquire(0.0)
    with collect_warnings() as messages:
        for number in (11, 12, 13):
            save(store, number)
            assert load(store, number)
        assert locks.LOCK_SECONDS <= clock.slept <= locks.LOCK_SECONDS + 0.1
        assert store.sweep() is None
    holder.release()
    assert store.bypasses[locks.UNANSWERED] == 3
    assert ["its holder may be stopped" in message for message in messages] == [True, False]
    save(store, 20)  # the lock is free, and used again
    assert store.sweep() is not None
    assert store.bypasses[locks.UNANSWERED] == 3
    assert find_present(store, 1, 2, 3, 11, 12, 13, 20) == [1, 2, 3, 11, 12, 13, 20]


@pytest.mark.parametrize("name", ["open", "write", "fsync", "close", "replace", "mkdir"])
def test_a_full_disk_at_any_call_costs_one_warning(store, monkeypatch, name):
    save(store, 0)
    real, step, failed = getattr(os, name), 0, [True]
    while failed:
        step, failed = step + 1, []
        calls = iter(range(1, step))

        def full(*args, calls=calls, failed=failed, **kwargs):
            if next(calls, None) is None:
                failed.append(args)
                if name == "close":
                    real(*args)
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        with collect_warnings() as messages, monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            saved = store.save(make_numbered_key(step), BACKEND, make_artifacts(step))
        assert saved == (not failed) or name in ("open", "mkdir")  # neither locks nor existing folders are vital
        assert len(messages) <= 1
        assert find_litter(store.directory) == []
        with collect_warnings():
            assert load(store, step) >= saved
            assert load(store, 0)
    assert saved
    assert set(store.bypasses) <= {"save failed: ENOSPC", "load failed: ENOSPC"}


@pytest.mark.parametrize("when", ["from the start", "later"])
def test_a_directory_that_cannot_be_written_is_read(open_folder, when):
    def work():
        drop_root()
        root = open_folder / "store"
        store = Store.open(root)
        save(store, 1)
        for path in (root, *root.rglob("*")):
            path.chmod(0o500 if path.is_dir() else 0o400)
        reader = Store.open(root) if when == "from the start" else store
        with collect_warnings() as messages:
            for _ in range(2):
                assert load(reader, 1)
                assert not load(reader, 2)
                with reader.take_turn(make_numbered_key(2), BACKEND) as turn:
                    assert turn.artifacts is None
                assert not reader.save(make_numbered_key(2), BACKEND, make_artifacts(2))
            reader.discard(make_numbered_key(1), BACKEND, "stale")
            assert [summary.name for summary in reader.entries()] == ["template_1"]
        assert not [message for message in messages if "cannot remove" in message]
        about = [message for message in messages if "cannot save" in message]
        assert len(about) == (1 if when == "from the start" else 2)
        assert reader.directory == root

    assert wait_for(fork(work)) == 0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path, mode):
    path = tmp_path / "store"
    path.mkdir()
    path.chmod(mode)
    advice = "set FUSIONCACHE_DIR to a directory of your own" if mode == 0o1777 else "chmod go-w {}"
    _assert_memory_only(advice.format(path), path)
    assert os.listdir(path) == []
    with pytest.raises(StoreError, match="others can write"):
        check(path)
    path.chmod(0o755)
    save(Store.open(path), 1)
    (path / "objects").chmod(mode)
    _assert_memory_only(advice.format(path / "objects"), path)


def test_a_directory_that_others_can_replace_or_a_link_leads_to_is_refused(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    _assert_memory_only(f"chmod o-w {theirs}", theirs / "store")
    (tmp_path / "link").symlink_to("theirs")
    _assert_memory_only(f"chmod go-w {theirs}", tmp_path / "link")
    save(Store.open(tmp_path / "store"), 1)
    shutil.rmtree(tmp_path / "store" / "objects")
    (tmp_path / "store" / "objects").symlink_to(theirs)
    _assert_memory_only("is no directory", tmp_path / "store")
    theirs.chmod(0o1777)
    assert Store.open(theirs / "store").directory


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "store"
    path.mkdir(0o700)
    if ROOT:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    _assert_memory_only("belongs to another user", path)
    assert os.listdir(path) == []


@pytest.mark.parametrize(
    ("file", "content", "store", "message"),
    [
        ("thesis.tex", "mine", "", "is no store and not empty (thesis.tex)"),
        ("file", "mine", "file", "file"),
        ("file", "mine", "file/store", "file"),
        *(("format", content, "", "move it away") for content in ("", "junk", "fusioncache store, form")),
    ],
)
def test_files_of_other_programs_are_left_alone(tmp_path, file, content, store, message):
    (tmp_path / file).write_text(content)
    _assert_memory_only(message, tmp_path / store)
    assert os.listdir(tmp_path) == [file] and (tmp_path / file).read_text() == content


def test_two_formats_at_once(tmp_path, monkeypatch):
    save(Store.open(tmp_path / "store"), 1)
    (tmp_path / "store" / "format").unlink()  # it is written again
    ours = Store.open(tmp_path / "store")
    here = default_path()
    with monkeypatch.context() as later:
        later.setattr(directory, "FORMAT", 2)
        _assert_memory_only("has format '1', not 2", tmp_path / "store")
        theirs = Store.open()
        save(theirs, 1)
        assert theirs.directory != here
    _assert_memory_only("has format '2', not 1", theirs.directory)
    assert load(ours, 1)


@pytest.mark.parametrize("how", ["removed", "replaced by a link", "replaced by a directory"])
def test_a_directory_that_changes_while_it_is_open_is_not_used_any_more(store, tmp_path, how):
    save(store, 1)
    place = store.directory
    place.rename(tmp_path / "old")
    if how == "replaced by a link":
        (tmp_path / "theirs").mkdir()
        place.symlink_to(tmp_path / "theirs")
    elif how == "replaced by a directory":
        place.mkdir()
    with collect_warnings() as messages:
        assert not load(store, 1)
        assert not store.save(make_numbered_key(1), BACKEND, make_artifacts(1))
        assert not load(store, 1)
        with store.take_turn(make_numbered_key(3), BACKEND) as turn:
            assert turn.lock_problem is None
    assert len(messages) == 1
    assert store.directory is None
    assert how == "removed" or os.listdir(place) == []
    assert how != "removed" or not place.exists()


def refuse(*_):
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize(
    ("place", "name", "fail", "bypasses"),
    [
        (entry.codec, "encode", lambda value: 1 / 0, {"save failed: ZeroDivisionError": 2}),
        (os, "replace", refuse, {"save failed: EROFS": 1, "the store is read-only": 1}),
    ],
    ids=["an unexpected error", "a read-only file system"],
)
def test_what_fails_in_a_save_does_not_reach_the_model(store, monkeypatch, place, name, fail, bypasses):
    monkeypatch.setattr(place, name, fail)
    with collect_warnings():
        assert not any(store.save(make_numbered_key(1), BACKEND, make_artifacts(1)) for _ in range(2))
    assert store.bypasses == bypasses
