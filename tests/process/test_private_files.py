"""Files are their owner's alone, whatever the mask of the process and of all versions."""

import os
import stat

import pytest

from fusioncache.observe.record.database import open_for_reading, open_for_writing, record_path
from fusioncache.process.files import make_folders, open_privately


@pytest.fixture(autouse=True)
def _usual_mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_files_of_sqlite_are_private_while_they_are_written_and_afterwards(tmp_path):
    with open_for_writing(tmp_path / "new") as database:
        database.execute("INSERT INTO records VALUES (0, '', 0, '')")
        assert modes(tmp_path) == {"new": 0o600, "new-journal": 0o600}
    assert modes(tmp_path) == {"new": 0o600}


def test_files_that_others_could_read_are_narrowed_when_they_are_opened(tmp_path, monkeypatch):
    path = tmp_path / "old"
    with open_for_writing(path):
        pass
    for open_file, mode in ((open_for_reading, 0o644), (open_for_writing, 0o666)):
        path.chmod(mode)
        with open_file(path):
            assert modes(tmp_path)["old"] == 0o600
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path))
    (tmp_path / "record-12.sqlite").touch()  # of another version
    with open_for_writing(record_path()):
        assert modes(tmp_path)["record-12.sqlite"] == modes(tmp_path)[record_path().name] == 0o600


def test_what_is_deleted_is_not_left_in_the_file(tmp_path):
    path = tmp_path / "file"
    with open_for_writing(path) as database:
        database.execute("INSERT INTO records VALUES (0, '', 0, ?)", ("zqword" * 1000,))
    assert b"zqword" in path.read_bytes()
    with open_for_writing(path) as database:
        database.execute("DELETE FROM records")
    assert b"zqword" not in path.read_bytes()


def test_folders_and_files_are_made_for_their_owner(tmp_path):
    make_folders(tmp_path / "a" / "b")
    with open(tmp_path / "a" / "file", "a", opener=open_privately) as file:
        file.write("x")
    assert modes(tmp_path) == {"a": 0o700} and modes(tmp_path / "a") == {"b": 0o700, "file": 0o600}
