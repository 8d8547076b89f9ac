"""Keys and artifacts that are derived from a number, and processes that use a store of them."""

import hashlib
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from fusioncache.cache.exchange import push
from fusioncache.ir import Ingredient, Key
from fusioncache.store import Store
from fusioncache.store.remote import Remote
from fusioncache.store.signing import SigningKey

BACKEND = "eager"
ENTRY_BYTES = 1200
"""More than the file size of an entry with such a key, and less than twice that."""
NOBODY = 65534


def make_numbered_key(text: object) -> Key:
    text = str(text)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return Key(digest, text, (Ingredient("all", text, digest),))


def make_artifacts(number: int, size: int = 3000) -> dict[str, bytes]:
    """Returns the artifacts of a number: one of its own, an empty one, and one that all numbers share."""
    return {"code": random.Random(number).randbytes(size), "empty": b"", "shared": b"shared" * 10}


def save(store: Store, *numbers: int) -> None:
    """Stores the artifacts of these numbers; asserts that each is stored."""
    for number in numbers:
        key, artifacts = make_numbered_key(number), make_artifacts(number)
        assert store.save(key, BACKEND, artifacts, name=f"template_{number}", seconds=number)


def push_new(store: Store, url: str, *numbers: int, key: SigningKey | None = None) -> None:
    """Saves the artifacts of these numbers, and pushes them."""
    save(store, *numbers)
    assert push(store, Remote(url), key=key).entries == len(numbers)


def find_present(store: Store, *numbers: int) -> list[int]:
    """Returns the numbers for which the store has an entry, without using the entries."""
    return [number for number in numbers if store.entry(make_numbered_key(number).digest, BACKEND)]


def load(store: Store, number: int) -> bool:
    """True if the store has the artifacts of this number; asserts that it has exactly these or none."""
    found = store.load(make_numbered_key(number), BACKEND)
    assert found is None or dict(found) == make_artifacts(number)
    return found is not None


def find_entry(store: Store, number: int) -> Path:
    digest = make_numbered_key(number).digest
    return store.directory / "entries" / digest[:2] / f"{digest}.{BACKEND}"


def find_object(store: Store, content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    return store.directory / "objects" / digest[:2] / digest


def age_entry(store: Store, number: int, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(find_entry(store, number), (when, when))


def find_litter(directory: Path) -> list[str]:
    """Returns the names of temporary files, of unfinished and of aborted writes."""
    return [file.name for file in directory.rglob("tmp-*")]


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yields a list that gets the messages of all our warnings at the end, also of those that were shown before."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def fork(work: Callable[[], object]) -> int:
    """Forks a process that calls ``work``, and exits with status 0 if nothing is raised. Returns its ID."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another thread is running: one of the test runner
        child = os.fork()
        if child:
            return child
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)


def drop_root() -> None:
    """Makes permissions apply to this process from now on, even if it runs as root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def wait_for(child: int) -> int:
    """Returns the exit status of a process, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills this process at its ``step``-th call from now that changes a file; a write is half done by then."""
    calls = iter(range(1, step))

    def call(name, function, *args, **kwargs):
        if next(calls, None) is None:
            if name == "write":
                function(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    for name in ("open", "write", "fsync", "close", "replace", "mkdir", "unlink", "utime"):
        monkeypatch.setattr(os, name, partial(call, name, getattr(os, name)))
