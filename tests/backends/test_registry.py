"""Backends by name: what the command line asks of them starts no compiler, and the best that works is picked."""

import pytest
import thunder
import torch

from fusioncache.backends.api import BACKENDS, Backend, Description, backend_class, describe, make_backend
from fusioncache.backends.torch_settings import write_versions


@pytest.mark.parametrize("name", BACKENDS)
def test_each_backend_follows_the_contract(name):
    kind = backend_class(name)
    assert issubclass(kind, Backend) and kind.name == name and kind.title
    assert describe(name, {}) == describe("of another version", {"kernels.cu": b""}) == Description()


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("other", {}, ValueError, "unknown backend 'other': use 'auto' or one of 'nvfuser', 'inductor', 'eager'"),
        ("eager", {"fold": "none"}, ValueError, "fold must be one of"),
        ("eager", {"mode": "fast"}, TypeError, "mode"),
    ],
)
def test_another_name_or_option_is_refused(name, options, error, message):
    with pytest.raises(error, match=message):
        make_backend(name, **options)


def test_a_backend_that_persists_nothing_says_so():
    eager = make_backend("eager")
    assert (eager.options(), eager.artifact_environment(), eager.definition(None)) == ({}, None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend eager persists nothing"):
        eager.load({}, None, [])  # type: ignore[arg-type]


def test_own_packages_come_first():
    expected = f"compiler 1\ntorch {torch.__version__}\nthunder {thunder.__version__}"
    assert write_versions(("compiler", "1")) == expected


@pytest.mark.parametrize("package", ["torch", "thunder"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_another_version_is_another_key(backend, package, monkeypatch):
    before = make_backend(backend).environment()["versions"]
    monkeypatch.setattr(f"{package}.__version__", "0.0.1")
    after = make_backend(backend).environment()["versions"]
    assert set(after.split("\n")) - set(before.split("\n")) == {f"{package} 0.0.1"}
