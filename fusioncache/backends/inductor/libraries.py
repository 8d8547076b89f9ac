"""Kernels out of shared libraries that are bytes."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusioncache.backends.inductor.package import ENTRY
from fusioncache.process import forks

_ADDRESS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
"""The variable in which a library looks, while it is loaded, for the function that gives a tensor's address."""

_loading = forks.lock()


def loaded(libraries: Mapping[str, bytes], scratch: Path | None) -> dict[str, Any]:
    """The kernels in these libraries. Loading needs files, which are there just for that moment.

    Raises:
        ImportError: if one does not load.
    """
    if not libraries:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="fusioncache-", dir=scratch))
    try:
        return {name: load_library(library, folder) for name, library in libraries.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # where files in use cannot be removed
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def load_library(library: bytes, folder: Path) -> Any:
    """Loads one library, as TorchInductor does, from a file in this folder."""
    import torch

    # The system and Python both take a path that they have seen before for the library that they already have.
    number = uuid.uuid4().hex
    path, name = folder / f"{number}.so", f"fusioncache_{number}.{ENTRY}"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o700), "wb") as file:
        file.write(library)
    with _loading:
        os.environ[_ADDRESS] = str(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)
        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader, origin=str(path))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules.pop(name, None)  # where such a module enters itself
    kernel = getattr(module, ENTRY, None)
    if kernel is None:
        raise ImportError("no kernel in it")
    return kernel
