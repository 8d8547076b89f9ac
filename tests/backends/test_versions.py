"""Every backend's key names the versions of all that makes its code."""

from __future__ import annotations

import pytest
import thunder
import torch

from fusioncache.backends.registry import make_backend
from fusioncache.backends.torch_settings import write_versions

BOTH = f"torch {torch.__version__}\nthunder {thunder.__version__}"


def test_own_packages_come_first():
    assert write_versions(("compiler", "1")) == f"compiler 1\n{BOTH}"


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_torch_and_thunder_are_in_every_key(backend):
    assert make_backend(backend).environment()["versions"] == BOTH


@pytest.mark.parametrize("package", ["torch", "thunder"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_another_version_is_another_key(backend, package, monkeypatch):
    before = make_backend(backend).environment()["versions"]
    monkeypatch.setattr(f"{package}.__version__", "0.0.1")
    after = make_backend(backend).environment()["versions"]
    assert set(after.split("\n")) - set(before.split("\n")) == {f"{package} 0.0.1"}
