"""Whether a place is there, as file systems of several kinds answer."""

import pytest

from fusioncache.store.transport import advice, find_absence


class Files:
    """A file system that has these paths."""

    def __init__(self, protocol, *paths):
        self.protocol = protocol
        self._paths = paths

    def exists(self, path):
        return path in self._paths

    isdir = exists


@pytest.mark.parametrize("protocol", [("s3", "s3a"), ("gs", "gcs"), "abfs"])
def test_a_bucket_has_to_be_there_and_a_folder_in_it_has_not(protocol):
    files = Files(protocol, "bucket")
    for make in (True, False):
        assert find_absence(files, "bucket/some/folder", make=make) is None
        missing = find_absence(files, "other/folder", make=make)
        assert missing == "there is no bucket other that can be seen from here: make it, or check the address"
    assert find_absence(Files(protocol, "mine/folder"), "mine/folder", make=False) is None


def test_elsewhere_only_what_is_written_need_not_be_there_and_only_its_last_folder():
    files = Files("sftp", "/shared")
    assert find_absence(files, "/shared/x", make=True) is None
    assert "no such folder" in (find_absence(files, "/shared/x", make=False) or "")
    assert "no folder /shared/x" in (find_absence(files, "/shared/x/y", make=True) or "")


class Answer(Exception):
    def __init__(self, status):
        self.status = status


class EndpointConnectionError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(), "check the credentials"),
        (Answer(403), "check the credentials"),
        (Answer(500), ""),
        (ConnectionRefusedError(), "something answers there"),
        (EndpointConnectionError(), "something answers there"),
        (ImportError("pyarrow"), ""),
        (KeyError("x"), ""),
    ],
    ids=repr,
)
def test_what_to_do(error, said):
    found = advice("hdfs", error)
    assert said in found if said else found == ""
