"""The command warm: what it prints, what it compiles, and how it fails."""

import json
import uuid

import pytest
from commands import call, get_output
from repository import HELPERS, import_path
from signing_keys import make_signing_key
from store_processes import PersistentEager, Process, X, Y, fill_store, make_region

from fusioncache.accelerators.precompile import entry_compiler as warmer
from fusioncache.store import Store

_SCRIPT = """
import os, sys
from store_contents import save
from fusioncache.store import Store
assert os.environ["FUSIONCACHE_STORE"] == "1"
print("options", sys.argv[1])
save(Store.open(), *map(int, sys.argv[2:-1]))
sys.exit(int(sys.argv[-1]))
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> PersistentEager:
    backend = PersistentEager({"machine": "there"})
    monkeypatch.setattr(warmer, "make_backend", lambda name, **options: backend)
    return backend


def test_what_is_compiled_and_what_is_ready(tmp_path):
    fill_store(tmp_path)
    assert get_output("warm", str(tmp_path), "--dry-run") == "would compile 2 of 2 templates; 0 are ready\n"
    assert get_output("warm", str(tmp_path), "--jobs", "1").startswith("compiled 2 of 2 templates in ")
    Process(tmp_path).run(make_region(), X.mT.contiguous().mT, Y)
    assert get_output("warm", str(tmp_path), "--dry-run") == "would compile 1 of 3 templates; 2 are ready\n"
    assert get_output("warm", "--jobs", "1", str(tmp_path)).endswith(" s; 2 were ready\n")


def test_a_url_is_pulled_first(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", make_signing_key("ci").text)
    fill_store(tmp_path)
    url = f"memory://{uuid.uuid4().hex}"
    assert call("push", url, "--dir", str(tmp_path)).exit_code == 0
    assert get_output("warm", url, "--jobs", "1").startswith("compiled 2 of 2 templates in ")
    assert len(Store.open().entries()) == 4


def test_what_is_left_out_is_said_and_what_fails_is_an_error_and_tried_again(tmp_path, here):
    fill_store(tmp_path)
    here.refuse = "no such kernel"
    result = call("warm", str(tmp_path), "--jobs", "1")
    assert (result.exit_code, result.stderr) == (0, "left out 2: cannot be stored: no such kernel\n")
    here.refuse, here.error = None, RuntimeError()
    fill_store(tmp_path / "other")
    result = call("warm", str(tmp_path / "other"), "--jobs", "1")
    assert (result.exit_code, result.stderr) == (1, "left out 2: failed: RuntimeError\n")
    assert result.stdout.startswith("compiled 0 of 2 templates in ")
    here.error = None
    assert get_output("warm", str(tmp_path / "other"), "--jobs", "1").startswith("compiled 2 of 2 templates in ")


def test_a_script_is_run_with_its_own_options(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", import_path(HELPERS))
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    assert get_output("warm", str(script), "--jobs", "1", "2", "0") == "compiled 2 executables; 2 are stored now\n"
    assert capfd.readouterr().err == "options --jobs\n"
    result = call("warm", "--json", str(script), "--", "--json", "3", "7")
    assert (result.exit_code, result.stderr) == (1, f"Error: {script} ended with status 7\n")
    data = json.loads(result.stdout)
    assert (data["status"], data["compiled"], data["kept"]) == (7, 1, 3)
