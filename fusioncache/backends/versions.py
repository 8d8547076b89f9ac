"""The versions of everything that takes part in deriving a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from types import ModuleType

from fusioncache.ir import Declined, Scope
from fusioncache.ir.keys import NamedValue
from fusioncache.process.sources import digest_sources

LIBRARIES = ("einops", "lightning_utilities", "looseversion", "networkx", "numpy", "optree")
"""Packages whose code Thunder runs, or whose classes it derives from, while it derives a program. Thunder imports
einops only if it is installed."""


def read_versions() -> Iterator[NamedValue]:
    """Yields the version of each package, and the digests of the sources that change most: Thunder's and fusioncache's.

    Raises:
        Declined: if sources were changed after they were imported.
    """
    import torch

    import fusioncache
    from fusioncache.thunder_adapter.versions import read_digest, read_own_version

    flags = f"optimize={sys.flags.optimize}"
    yield "python", f"{sys.implementation.cache_tag} {sys.version.split()[0]} {flags}"
    yield "torch", f"{torch.__version__} {torch.version.git_version}"
    yield "thunder", read_own_version()
    yield "fusioncache", fusioncache.__version__
    yield "nvfuser", _read_nvfuser()
    yield from ((name, _version_of(name)) for name in LIBRARIES)
    digest = read_digest()
    if not digest:
        raise Declined("the sources of Thunder were changed after they were imported", Scope.PROGRAM)
    yield "thunder.sources", digest
    yield "fusioncache.sources", _digest(fusioncache)


def _read_nvfuser() -> str:
    """Returns the version of the nvFuser that Thunder uses here. Without a GPU it must not be imported.

    With several ranks, its shutdown would then abort the process.
    """
    import torch

    if not torch.cuda.is_available():
        return "none"
    try:
        import nvfuser_direct
    except ImportError:
        return "none"
    return str(nvfuser_direct.version())


def _version_of(library: str) -> str:
    """Returns the version of an imported library; ``none`` if it is not imported."""
    module = sys.modules.get(library)
    if module is None:
        return "none"
    own = getattr(module, "__version__", None)
    return _installed_version(library) if own is None else str(own)


@cache
def _installed_version(library: str) -> str:
    return version(library)  # looseversion has no ``__version__``


def _digest(package: ModuleType) -> str:
    try:
        return digest_sources(str(package.__file__).rpartition(os.sep)[0])
    except ValueError as error:
        raise Declined(str(error), Scope.PROGRAM) from error
