"""The ingredient ``program versions``: the very code of everything that takes part in deriving a program.

A version alone does not say what code there is: a developer changes Thunder or this package without giving it another.
So the sources of both are part of it. Torch is named by the commit it was built from; what a trace interprets of it is
a read of the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from types import ModuleType

from fusioncache.accelerators.programs.places import LIBRARIES
from fusioncache.ir.errors import Declined, Scope
from fusioncache.ir.key_text import NamedValue
from fusioncache.process.source_digest import digest_sources


def read_versions() -> Iterator[NamedValue]:
    """Yields the version of each package, and the digest of the sources of those that are changed most.

    Raises:
        Declined: if sources were changed since they were imported.
    """
    import fusioncache
    from fusioncache.thunder_adapter.accelerator_api import thunder

    yield from _read_releases()
    yield "thunder.sources", _digest(thunder)
    yield "fusioncache.sources", _digest(fusioncache)


def _read_releases() -> Iterator[NamedValue]:
    import torch

    from fusioncache import __version__
    from fusioncache.thunder_adapter.accelerator_api import thunder

    flags = f"optimize={sys.flags.optimize}"
    yield "python", f"{sys.implementation.cache_tag} {sys.version.split()[0]} {flags}"
    yield "torch", f"{torch.__version__} {torch.version.git_version}"
    yield "thunder", thunder.__version__
    yield "fusioncache", __version__
    yield "nvfuser", _nvfuser_version()
    yield from ((name, _version_of(name)) for name in LIBRARIES)


def _nvfuser_version() -> str:
    from fusioncache.thunder_adapter.accelerator_api import nvfuser_version

    return str(nvfuser_version() or "none")


def _version_of(library: str) -> str:
    """Returns the version of a library as it was imported."""
    module = sys.modules.get(library)
    if module is None:
        return "none"
    said = getattr(module, "__version__", None)
    return _installed_version(library) if said is None else str(said)


@cache
def _installed_version(library: str) -> str:
    return version(library)  # looseversion does not say its own


def _digest(package: ModuleType) -> str:
    try:
        return digest_sources(str(package.__file__).rpartition(os.sep)[0])
    except ValueError as error:
        raise Declined(str(error), Scope.PROGRAM) from error
