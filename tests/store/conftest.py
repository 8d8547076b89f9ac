"""Fixtures of several tests of the store."""

import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem
from store_contents import NOBODY

from fusioncache.store import Store, read_through, remote, transport


def _nothing(what: str, path: str) -> None:
    return None


class Faulty(AbstractFileSystem):
    """A file system in memory, below ``faulty://``; all instances share its files."""

    protocol = "faulty"
    files: ClassVar[dict[str, bytes]] = {}
    calls: ClassVar[list[tuple[str, str]]] = []
    fault: ClassVar[Callable[[str, str], object]] = _nothing
    reads: ClassVar[int] = 0

    @classmethod
    def find(cls, part: str) -> str:
        (found,) = (path for path in cls.files if part in path)
        return found

    def _do(self, what: str, path: str) -> str:
        path = self._strip_protocol(path)
        Faulty.calls.append((what, path))
        Faulty.fault(what, path)
        return path

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        path = self._do("open", path)
        if path not in self.files:
            raise FileNotFoundError(path)
        return _Counted(self.files[path])

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        path = self._do("write", path)
        if mode == "create" and path in self.files:
            raise FileExistsError(path)
        self.files[path] = value

    def rm_file(self, path: str) -> None:
        path = self._do("remove", path)
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(path)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.files[self._do("mv", path2)] = self.files.pop(self._strip_protocol(path1))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        assert exist_ok

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[dict[str, Any]]:
        path = self._do("ls", path).rstrip("/")
        inside = {name: name.removeprefix(f"{path}/") for name in self.files if name.startswith(f"{path}/")}
        folders = {f"{path}/{rest.partition('/')[0]}" for rest in inside.values() if "/" in rest}
        files = [{"name": name, "size": len(self.files[name]), "type": "file"} for name in inside]
        files = [each for each in files if "/" not in inside[each["name"]]]
        return [*files, *({"name": folder, "size": 0, "type": "directory"} for folder in sorted(folders))]

    def exists(self, path: str, **kwargs: Any) -> bool:
        self._do("exists", path)
        return True

    isdir = exists


class _Counted(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        Faulty.reads += len(part)
        return part


@pytest.fixture(autouse=True)
def _trusts_all_and_is_in_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIONCACHE_TRUST", "unsigned")  # other tests cover signatures
    monkeypatch.setattr(read_through, "WAIT_SECONDS", 60.0)  # a busy machine is no slow remote
    monkeypatch.setattr(read_through, "SPREAD_SECONDS", 0.0)
    monkeypatch.setattr(transport, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(remote, "READ_BACK_SECONDS", (0.0, 0.0))
    # Nothing is forced onto the disk, which takes most of the time of many saves.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yields a folder that an unprivileged user owns and can reach."""
    path = Path(tempfile.mkdtemp()).resolve()
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def files() -> Iterator[type[Faulty]]:
    """Yields the file system of remotes, whose failures a test sets."""
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    yield Faulty
    Faulty.files.clear()
    Faulty.calls.clear()
    Faulty.fault, Faulty.reads = _nothing, 0


@pytest.fixture
def url(files: type[Faulty]) -> str:
    """Returns the URL of a remote that no other test uses."""
    return f"faulty://{uuid.uuid4().hex}/shared"


@pytest.fixture
def here(tmp_path: Path) -> Store:
    """Returns a store without a remote."""
    return Store.open(tmp_path / "here", remote="")


@pytest.fixture
def there(tmp_path: Path) -> Store:
    """Returns another store without a remote."""
    return Store.open(tmp_path / "there", remote="")
