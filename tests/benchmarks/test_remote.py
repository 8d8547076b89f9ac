"""``benchmarks.remote`` and ``benchmarks.remote.fuzz``: hosts that load a model, decoders that meet changed files."""

import random

import pytest

from benchmarks.remote import fuzz, hosts
from benchmarks.remote.__main__ import _EXACT
from fusioncache.store import read_through


@pytest.fixture
def job(tmp_path, monkeypatch):
    """What two hosts of two processes are told, and the remote that they have."""
    monkeypatch.setenv("FUSIONCACHE_TRUST", "unsigned")
    monkeypatch.setattr(hosts, "import_module", lambda name: None)  # there is no client of S3 here
    monkeypatch.setattr(read_through, "WAIT_SECONDS", 60.0)  # a busy machine is no slow remote
    small = {"entries": 3, "size": 10, "processes": 2, "import_seconds": 0.0, "compile_seconds": 0.0}
    assert small.keys() == _EXACT.keys()
    return {**small, "url": str(tmp_path / "remote"), "hosts": 2, "within": 0.1}


def test_hosts_load_what_a_remote_has_and_compile_the_rest_once_each(job, tmp_path):
    filled = hosts.fill_remote({**job, "hosts": 1})
    assert (filled["entries"], filled["failed"]) == (3, 0)
    found = hosts.start_hosts(job)["processes"]
    assert [(one["compiled"], one["reasons"]) for one in found] == [(0, [])] * 4
    (tmp_path / "other").mkdir()
    found = hosts.start_hosts({**job, "url": str(tmp_path / "other")})["processes"]
    assert sum(one["compiled"] for one in found) == 2 * 3


@pytest.mark.parametrize("kind", ["entry, its checksum right", "head of a pack", "index", "key", "pack"])
def test_decoders_refuse_or_decode_changed_files(tmp_path, kind):
    kinds = fuzz.make_inputs(tmp_path)
    content, read = kinds[kind]
    others = b"".join(each for each, _ in kinds.values())
    found = fuzz.fuzz(read, content, others, 100 if kind == "pack" else 1000, 0)
    assert not [what for what in found if what.startswith("crashed")]
    assert found["refused"] > 10
    assert fuzz.change(content, others, random.Random(1)) != content
