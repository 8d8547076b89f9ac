"""What a key says of the process and of the code in it. That two processes make one is in another file."""

import os
import sys
import time
from pathlib import Path

import einops
import lightning_utilities
import networkx
import numpy
import pytest
import thunder
import torch
from program_keys import assert_names, changed, key_of
from thunder_versions import VERSION

import fusioncache
from fusioncache.process.sources import digest_sources

X = torch.zeros(3, 4)
pytestmark = pytest.mark.usefixtures("few")
VERSIONS = {
    "python": (sys, "version", "3.12.99 (main)", r"python: (cpython-3\d+) .*, \1 3.12.99"),
    "torch": (torch, "__version__", "2.10.1", r"torch: 2\.\d+\.\d.*, 2.10.1"),
    "torch's commit": (torch.version, "git_version", "abcdef", "torch: .*, .*abcdef"),
    "thunder": (thunder, "__version__", "0.2.8", f"thunder: {VERSION}, 0.2.8"),
    "fusioncache": (fusioncache, "__version__", "99", "fusioncache: .*, 99"),
    "einops": (einops, "__version__", "99", "einops: .*, 99"),
    "lightning_utilities": (lightning_utilities, "__version__", "99", "lightning_utilities: .*, 99"),
    "networkx": (networkx, "__version__", "99", "networkx: .*, 99"),
    "numpy": (numpy, "__version__", "99", "numpy: .*, 99"),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_the_key_names_the_version_that_is_another_one(name, jitted, key):
    owner, attribute, value, expected = VERSIONS[name]
    with changed(owner, attribute, value):
        other = key_of(jitted, X)
    assert_names(expected, key, other)


def write_sources(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
        os.utime(folder / f"{name}.py", (1, 1))
    return folder


def test_sources_are_compared_by_what_is_in_them_and_not_by_where_or_when(tmp_path):
    one = write_sources(tmp_path / "one", a="x = 1", b="")
    same = write_sources(tmp_path / "same", a="x = 1", b="")
    os.utime(same / "a.py", (2, 2))
    (same / "tests").mkdir()
    (same / "tests" / "c.py").write_text("is no part of it")
    assert digest_sources(str(one)) == digest_sources(str(same))
    others = [
        write_sources(tmp_path / "content", a="x = 2", b=""),
        write_sources(tmp_path / "name", a="x = 1", c=""),
        write_sources(tmp_path / "less", a="x = 1"),
        write_sources(tmp_path / "moved", a="", b="x = 1"),
    ]
    assert len({digest_sources(str(each)) for each in (one, *others)}) == 5


def test_sources_that_are_younger_than_the_process_may_not_be_what_it_imported(tmp_path):
    folder = write_sources(tmp_path / "young", a="x = 1")
    os.utime(folder / "a.py", (time.time() + 60,) * 2)
    with pytest.raises(match=r"^a\.py was changed after it was imported$"):
        digest_sources(str(folder))


@pytest.mark.parametrize("name", ["NVFUSER_DISABLE", "NVFUSER_OPTIMIZATION_FUEL", "THUNDER_ANNOTATE_TRACES"])
def test_the_key_names_the_variable_that_is_another_one_and_hides_its_value(name, jitted, key, monkeypatch):
    monkeypatch.setenv(name, "a secret")
    other = key_of(jitted, X)
    assert_names(f"the variable {name}: none, hidden str ", key, other)
    assert "secret" not in other.text


def test_variables_that_nobody_reads_who_derives_programs_are_not_in_the_key(jitted, key, monkeypatch):
    monkeypatch.setenv("SOMEBODY_ELSES", "1")
    assert key_of(jitted, X) == key
