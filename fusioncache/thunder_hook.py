"""Registers the executor with Thunder as soon as both are imported, in any order, without importing either early.

It also starts the process pool that compiles: see ``start_default_pool``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from fusioncache.process.warning import warn
from fusioncache.thunder_adapter import call_with_api


def register_with_thunder() -> None:
    """Registers the executor now if Thunder is imported, else right after it is."""
    if "thunder" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _WaitForThunder())


def _register() -> None:
    try:
        from fusioncache.transform.executors import register

        register()
        import_module("fusioncache.accelerators.precompile.pool").start_default_pool()
    except Exception as error:  # Thunder must stay importable after any error
        warn(f"Thunder does not get to know the executor 'fusioncache': {error!r}")


class _WaitForThunder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "thunder":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        call_with_api(_register)
