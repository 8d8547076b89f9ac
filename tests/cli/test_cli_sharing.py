"""The commands push and pull: what they print, what they copy, and how they fail."""

import json
import os
import pty
import socket
import subprocess
import sys
import uuid
from contextlib import closing
from importlib import import_module

import pytest
from commands import call, get_error, get_output
from file_server import Handler, serve
from repository import ROOT
from signing_keys import make_signing_key
from store_contents import BACKEND, find_object, find_present, load, make_artifacts, make_numbered_key, save

from fusioncache.store import Store, entry, transport

CI = make_signing_key("ci")


@pytest.fixture(autouse=True)
def _signs(monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", CI.text)


@pytest.fixture
def url():
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def served(tmp_path):
    with serve(tmp_path / "served") as url:
        yield url


def test_what_was_pushed_is_pulled(url, store, tmp_path):
    save(store, 1, 2)
    assert get_output("push", url) == f"pushed 2 entries in 1 pack (9.0 kB) to {url}; 0 were there already\n"
    assert get_output("push", url) == f"pushed 0 entries in 0 packs (0 B) to {url}; 2 were there already\n"
    there = tmp_path / "there" / "store"
    assert get_output("pull", url, "--dir", str(there)).startswith("pulled 2 entries in 1 pack (9.0 kB)")
    save(store, 3)
    assert get_output("push", url).startswith("pushed 1 entry in 1 pack (")
    assert all(load(Store.open(there), number) for number in (1, 2))


def test_a_dry_run_copies_nothing(url, store, tmp_path):
    save(store, 1)
    assert get_output("push", url, "--dry-run").startswith("would push 1 entry in 1 pack")
    assert json.loads(get_output("push", url, "--dry-run", "--json"))["dry_run"] is True
    get_output("push", url)
    there = str(tmp_path / "there")
    assert get_output("pull", url, "--dry-run", "--dir", there).startswith("would pull 1 entry in 1 pack")
    assert find_present(Store.open(there), 1) == []


def test_what_is_damaged_is_left_out_and_said(url, store):
    save(store, 1, 2)
    find_object(store, make_artifacts(1)["code"]).write_bytes(b"x" * 3000)
    result = call("push", url)
    assert result.exit_code == 1
    assert result.stdout.startswith("pushed 1 entry in 1 pack")
    assert result.stderr == "left out 1: a wrong checksum\n"


def test_what_another_version_wrote_is_no_failure(url, store, monkeypatch, tmp_path):
    with monkeypatch.context() as later:
        later.setattr(entry, "FORMAT", 2)
        save(store, 1)
        get_output("push", url)
    result = call("pull", url, "--dir", str(tmp_path / "there"))
    assert (result.exit_code, result.stderr) == (0, "left out 1: an entry of another format\n")


_CHECK = "check the address"
_NO_FOLDER = f"there is no such folder: {_CHECK}"
_S4 = f"Protocol not known: s4: {_CHECK}"


@pytest.mark.parametrize(
    ("command", "address", "said"),
    [
        ("pull", "/nowhere/x", _NO_FOLDER),
        ("push", "/nowhere/x", f"there is no folder /nowhere: make it, or {_CHECK}"),
        ("pull", "train.py", _NO_FOLDER),
        ("pull", "file:///nowhere", _NO_FOLDER),
        ("warm", "file:///nowhere", _NO_FOLDER),
        ("push", "file:///nowhere/x", f"there is no folder /nowhere: make it, or {_CHECK}"),
        *((command, __file__, f"{__file__} is no folder: {_CHECK}") for command in ("pull", "push")),
        ("pull", "http://[::x/y", f"Invalid IPv6 URL: {_CHECK}"),
        *((command, "s4://bucket/x", _S4) for command in ("pull", "push", "warm")),
    ],
)
def test_a_place_that_is_not_there_is_an_error(command, address, said, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = get_error(command, address)
    assert message.startswith(f"Error: {address} cannot be used, ")
    assert message.endswith(f"{said}\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["pull x", "push x", "prune --remote x", "unpack x", "keys list", "keys revoke x"])
def test_a_wrong_list_of_keys_is_said(command, store, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_TRUST", "nonsense")
    save(store, 1)
    assert "FUSIONCACHE_TRUST" in get_error(*command.split())


def test_a_server_that_gives_no_answer_is_an_error(served, monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", (0.0,))
    Store.open()
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/x"
        said = get_error("pull", dead)
    assert said.startswith(f"Error: {dead} cannot be used, could not read: ")
    assert said.endswith(f": {_CHECK}, and that something answers there\n")
    assert get_error("pull", f"{served}/x") == (
        f"Error: {served}/x cannot be used, there is no such folder: {_CHECK}\n"
    )
    assert get_output("pull", served) == f"nothing to pull: {served} has no entries\n"


def test_what_a_server_keeps_to_itself_is_not_taken_for_nothing(served, store, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", (0.0,))
    save(store, 1)
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


def test_what_cannot_be_used_fails_and_says_why(url, store, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", (0.0,))
    save(store, 1)
    missing = tmp_path / "missing"
    assert f"there is no store in {missing}: " in get_error("push", url, "--dir", str(missing))
    assert not missing.exists()
    (tmp_path / "thesis.tex").touch()
    assert "is no store and not empty (thesis.tex)" in get_error("pull", url, "--dir", str(tmp_path))
    assert "Protocol not known: nothing: check the address" in get_error("push", "nothing://x")
    assert "can only be read" in get_error("push", "https://example.org/x")
    assert "/proc/none cannot be written" in get_error("push", "/proc/none")
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_full_disk_is_said(url, store, tmp_path, monkeypatch):
    save(store, 1)
    get_output("push", url)
    there = str(tmp_path / "there")
    Store.open(there)

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert "the store cannot be used: [Errno 28] No space left on device" in get_error("pull", url, "--dir", there)


def test_credentials_are_not_shown(store):
    save(store, 1)
    result = call("push", "nothing://user:s3cret@host/x")
    assert result.exit_code == 1
    assert "nothing://host/x cannot be used" in result.stderr
    assert "s3cret" not in result.output


_WRONG = [["push"], ["pull"], ["pull", "memory://x", "--what"]]
_WRONG += [[command, address] for command in ("push", "pull") for address in ("", "-", "://x", "file://", "s3://")]


@pytest.mark.parametrize("args", _WRONG, ids=" ".join)
def test_a_wrong_use_exits_with_2(args):
    assert get_error(*args, code=2).startswith("Usage: ")


def test_no_store_is_made_for_an_address_that_is_none(tmp_path):
    get_error("pull", "/nowhere", "--dir", str(tmp_path / "there"))
    get_error("pull", "/nowhere", "--dir", str(tmp_path))
    get_error("push", str(tmp_path / "shared"), "--dir", str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_progress_is_shown_on_a_terminal_only_and_on_stderr(store, tmp_path):
    save(store, *range(5))
    shared = str(tmp_path / "shared")
    program = "import sys; from fusioncache.cli.main import main; main(sys.argv[1:], prog_name='fusioncache')"
    command = [sys.executable, "-c", program, "push", shared]
    ours, theirs = pty.openpty()
    done = subprocess.run([*command, "--dry-run"], stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, check=True)
    os.close(theirs)
    shown = b""
    while part := _part(ours):
        shown += part
    assert b"push" in shown
    assert b"1/1" in shown
    assert done.stdout.startswith(b"would push 5 entries in 1 pack")
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    assert done.stderr == b""
    assert done.stdout.startswith(b"pushed 5 entries in 1 pack")


def _part(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1000)
    except OSError:  # the other end is closed
        return b""


def test_torch_is_not_loaded(store, tmp_path):
    save(store, 1)
    program = (
        "import sys; from fusioncache.cli.main import main; assert 'fsspec' not in sys.modules\n"
        f"for command in (['push', {str(tmp_path / 'shared')!r}], ['warm']): main(command, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        0,
        "left out 1: stored without its compile request, by an older version\n",
    )
    assert Store.open(remote="").entry(make_numbered_key(1).digest, BACKEND)
