"""A CUDA driver without a GPU: the real structures and numbers of ``cuda.bindings``, and functions of tests."""

from types import SimpleNamespace

import pytest

from fusioncache.backends.nvfuser.driver import Driver


def fake_driver(**functions):
    """Returns a driver in which these functions replace those of ``cuda.bindings``."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    texts = {"cuGetErrorString": lambda result: (bindings.CUresult.CUDA_SUCCESS, b"as a test says")}
    return Driver(SimpleNamespace(**{**vars(bindings), **texts, **functions}))
