"""What several tests of the store start from."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_filesystem import Faulty, faulty
from store_contents import NOBODY

from fusioncache.store import Store, read_through, remote, transport


@pytest.fixture(autouse=True)
def _lets_unsigned_entries_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is signed has tests of its own."""
    monkeypatch.setenv("FUSIONCACHE_TRUST", "unsigned")


@pytest.fixture(autouse=True)
def _waits_for_remotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow remote."""
    monkeypatch.setattr(read_through, "WAIT_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _waits_for_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is not forced onto the disk, which takes most of the time of many saves."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a user without rights can reach, and has."""
    path = Path(tempfile.mkdtemp()).resolve()
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def files() -> Iterator[type[Faulty]]:
    """The file system of remotes that fail as a test says."""
    with faulty() as files:
        yield files


@pytest.fixture
def url(files: type[Faulty], monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a remote that no other test uses, and that is asked without pauses."""
    monkeypatch.setattr(transport, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(remote, "READ_BACK_SECONDS", (0.0, 0.0))
    return f"faulty://{uuid.uuid4().hex}/shared"


@pytest.fixture
def here(tmp_path: Path) -> Store:
    """A store that asks no remote."""
    return Store.open(tmp_path / "here", remote="")


@pytest.fixture
def there(tmp_path: Path) -> Store:
    """Another one."""
    return Store.open(tmp_path / "there", remote="")
