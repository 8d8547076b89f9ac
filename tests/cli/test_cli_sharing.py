"""The commands push and pull: what they copy, and what they say of servers, packages and disks."""

import os
import socket
import sys
import uuid
from contextlib import closing
from importlib import import_module

import pytest
from commands import get_error, get_output
from file_server import Handler, serve
from signing_keys import make_signing_key
from store_contents import save

from fusioncache.store import Store, transport


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", make_signing_key("ci").text)
    monkeypatch.setattr(transport, "PAUSES", (0.0,))


@pytest.fixture
def url():
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def served(tmp_path):
    with serve(tmp_path / "served") as url:
        yield url


def test_a_server_that_gives_no_answer_or_an_error_is_not_taken_for_an_empty_one(served, store, tmp_path):
    save(store, 1)
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/x"
        said = get_error("pull", dead)
    assert said.startswith(f"Error: {dead} cannot be used, could not read: ")
    assert said.endswith(": check the address, and that something answers there\n")
    assert get_error("pull", f"{served}/x").endswith("there is no such folder: check the address\n")
    assert get_output("pull", served) == f"nothing to pull: {served} has no entries\n"
    get_output("push", str(tmp_path / "served"))
    Handler.broken = "/index"
    assert "could not read: ClientResponseError: 500" in get_error("pull", served, "--dir", str(tmp_path / "there"))


def test_a_missing_package_is_named_with_what_installs_it(store, monkeypatch):
    for module in ("s3fs", "gcsfs", "aiohttp"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    for scheme in ("s3", "gs", "http", "https"):  # what was loaded before
        monkeypatch.delitem(import_module("fsspec.registry")._registry, scheme, raising=False)
    for address, package, extra in (
        ("s3://bucket/x", "s3fs", "s3"),
        ("gs://bucket/x", "gcsfs", "gs"),
        ("https://host/x", "aiohttp", "http"),
    ):
        said = get_error("pull", address)
        assert said.endswith(f': it needs the package {package}, pip install "fusioncache[{extra}]"\n')


def test_a_full_disk_is_said(url, store, tmp_path, monkeypatch):
    save(store, 1)
    get_output("push", url)
    there = str(tmp_path / "there")
    Store.open(there)

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert "the store cannot be used: [Errno 28] No space left on device" in get_error("pull", url, "--dir", there)
