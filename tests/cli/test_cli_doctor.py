"""``fusioncache doctor``, here and where something is missing or different."""

import json
import subprocess
import sys
import time

import thunder
import torch
from commands import call
from file_server import serve
from signing_keys import make_signing_key
from store_contents import push_new
from thunder.core import jit_ext

from fusioncache.cli import doctor as diagnosis
from fusioncache.cli.doctor import diagnose, examine_remote, examine_store
from fusioncache.store import Store
from fusioncache.thunder_adapter import capabilities, installation, versions
from fusioncache.thunder_adapter.versions import FAULTS, find_fault_of_graph, find_faults


def test_all_works_here(tmp_path):
    """Runs in another process, because tests replace a function of torch in this one."""
    command = [sys.executable, "-m", "fusioncache", "doctor", "--json", "--dir", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    data = json.loads(done.stdout)
    assert (data["status"], data["off"], data["misfits"]) == (0, {}, [])
    assert data["versions"]["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(each["works"] for each in data["capabilities"])
    assert data["store"] == {
        **{"path": str(tmp_path / "store"), "exists": False, "writable": True, "bytes": None, "mode": None},
        "problem": "",
    }


def forget() -> None:
    """Clears what was found out, so that everything is examined anew."""
    capabilities.find_off.cache_clear()
    installation.uninstall()


def test_a_function_with_another_source_is_shown_as_a_difference(monkeypatch, request, tmp_path):
    own = jit_ext.build_value_from_wrapped

    def build_value_from_wrapped(*args, **options):
        return own(*args, **options)

    forget()
    request.addfinalizer(forget)
    monkeypatch.setattr(jit_ext, "build_value_from_wrapped", build_value_from_wrapped)
    result = call("doctor", "--dir", str(tmp_path / "store"))
    status, text = result.exit_code, result.output
    assert status == 1 and thunder.__version__ in text and str(tmp_path / "store") in text
    assert "thunder.core.jit_ext:build_value_from_wrapped (sizes), installed: " in text
    assert "+        return own(*args, **options)" in text and "--- written for" in text
    assert "it does without sizes" in " ".join(text.split())


def test_a_thunder_that_cannot_be_imported_is_told_of(monkeypatch):
    monkeypatch.setitem(sys.modules, "thunder", None)
    result = call("doctor", "--json")
    data = json.loads(result.output)
    assert (result.exit_code, data["status"]) == (2, 2)
    assert data["unusable"].startswith("Thunder cannot be imported: ModuleNotFoundError") and data["advice"]


def test_a_store_that_cannot_be_written_is_told_of(monkeypatch, tmp_path):
    monkeypatch.setattr(diagnosis.os, "access", lambda path, mode: False)
    found = examine_store(tmp_path / "store")
    assert not found["writable"] and f"{tmp_path} cannot be written" in found["problem"]
    assert diagnose(tmp_path / "store")["status"] == 1
    found = examine_store(tmp_path / ("a" * 300))
    assert not found["writable"] and "cannot be used (File name too long)" in found["problem"]


def test_what_fails_without_fusioncache_is_told_of(monkeypatch):
    for fault in FAULTS:
        monkeypatch.setattr(versions, "read_torch_version", lambda torch=fault.torch: torch)
        monkeypatch.setattr(versions, "read_version", lambda known=fault.thunder: known.replace("\\", "") + "0")
        assert fault in find_faults()
        monkeypatch.setattr(versions, "read_torch_version", lambda: (2, 9))
        assert find_faults() == []
    # The fault of a graph with a user's ``autograd.Function`` is known.
    graph = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    monkeypatch.setattr(versions, "read_torch_version", lambda: (2, 11))
    assert find_fault_of_graph(graph) is None
    graph.graph.call_function(torch.ops.higher_order.autograd_function_apply, ())
    assert "autograd.Function" in find_fault_of_graph(graph).problem


def test_the_remote_is_examined(tmp_path, monkeypatch):
    key = make_signing_key("ci")
    assert examine_remote() is None
    monkeypatch.setenv("FUSIONCACHE_REMOTE", str(tmp_path / "nosuch"))
    assert "there is no such folder" in examine_remote()["problem"]

    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("FUSIONCACHE_REMOTE", str(shared))
    found = examine_remote()
    assert (found["packs"], found["writable"], found["problem"]) == (None, True, "")
    assert not [path for path in shared.rglob("*") if path.is_file()]

    store = Store.open(tmp_path / "store", remote="")
    push_new(store, str(shared), 1, key=key)
    assert "signed by a key that is not trusted" in examine_remote()["problem"]
    monkeypatch.setenv("FUSIONCACHE_TRUST", key.public)
    found = examine_remote()
    assert (found["packs"], found["problem"]) == (1, "")
    assert found["signer"] == f"FUSIONCACHE_TRUST ({key.public[:16]})"
    monkeypatch.setattr(time, "time", lambda: found["written"] - 3600)
    assert "ahead of this machine's clock" in examine_remote()["problem"]

    with serve(tmp_path / "served") as url:
        monkeypatch.setenv("FUSIONCACHE_REMOTE", url)
        found = examine_remote()
    assert (found["writable"], found["problem"]) == (False, "")  # that it can only be read is no problem
