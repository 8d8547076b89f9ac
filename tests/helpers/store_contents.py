"""Keys and artifacts that go by a number, and processes that use a store of them."""

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

BACKEND = "eager"
ENTRY_BYTES = 1200
"""More than the file of an entry with such a key takes, and less than twice that."""
NOBODY = 65534


def make_numbered_key(text: object) -> Key:
    text = str(text)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return Key(digest, text, (Ingredient("all", text, digest),))


def make_artifacts(number: int, size: int = 3000) -> dict[str, bytes]:
    """What is always stored for a number: an artifact of its own, an empty one, and one that all share."""
    return {"code": random.Random(number).randbytes(size), "empty": b"", "shared": b"shared" * 10}


def save(store: Store, *numbers: int) -> None:
    """Stores what belongs to these numbers, and sees that it is there."""
    for number in numbers:
        key, artifacts = make_numbered_key(number), make_artifacts(number)
        assert store.save(key, BACKEND, artifacts, name=f"template_{number}", seconds=number)


def push_new(store: Store, url: str, *numbers: int) -> None:
    """Saves what belongs to these numbers, and pushes that."""
    save(store, *numbers)
    assert push(store, Remote(url)).entries == len(numbers)


def find_present(store: Store, *numbers: int) -> list[int]:
    """Those of the numbers that the store has an entry for, seen without using it."""
    return [number for number in numbers if store.entry(make_numbered_key(number).digest, BACKEND)]


def load(store: Store, number: int) -> bool:
    """Whether the store has what belongs to this number. It must have that or nothing."""
    found = store.load(make_numbered_key(number), BACKEND)
    assert found is None or dict(found) == make_artifacts(number)
    return found is not None


def find_entry(store: Store, number: int) -> Path:
    digest = make_numbered_key(number).digest
    return find_root(store) / "entries" / digest[:2] / f"{digest}.{BACKEND}"


def find_object(store: Store, content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    return find_root(store) / "objects" / digest[:2] / digest


def find_root(store):
    return store.directory


def age_entry(store: Store, number: int, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(find_entry(store, number), (when, when))


def find_litter(directory: Path) -> list[str]:
    """Files that are being written, or were."""
    return [file.name for file in directory.rglob("tmp-*")]


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """The messages of all warnings of ours, also of those that were shown before."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def fork(work: Callable[[], object]) -> int:
    """Starts a process that does this, and ends with status 0 if nothing is raised. Returns its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some other thread is running, of the test runner's
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
    """From now on permissions bind this process, also if it was root's."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def wait_for(child: int) -> int:
    """How a process ended: its status, or minus the number of the signal."""
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
