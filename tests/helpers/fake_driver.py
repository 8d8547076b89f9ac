"""A CUDA driver without a GPU: the real structures and numbers of ``cuda.bindings``, and functions that tests make."""

from types import SimpleNamespace
from typing import Any

import pytest

from fusioncache.backends.nvfuser.driver import Driver


def fake_bindings(**functions: Any) -> Any:
    """Returns ``cuda.bindings.driver`` with these functions in place of its own."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    texts = {"cuGetErrorString": lambda result: (bindings.CUresult.CUDA_SUCCESS, b"as a test says")}
    return SimpleNamespace(**{**vars(bindings), **texts, **functions})


def fake_driver(**functions: Any) -> Driver:
    """Returns a driver with these functions of ``cuda.bindings`` in place of its own."""
    return Driver(fake_bindings(**functions))
