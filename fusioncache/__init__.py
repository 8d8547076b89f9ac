"""Compile each fusion region of a Lightning Thunder program once.

    import fusioncache
    compiled = thunder.jit(model, transforms=[fusioncache.FusionCache()])

Importing this package imports neither torch nor Thunder; using one of its names does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fusioncache.thunder_hook import register_with_thunder

if TYPE_CHECKING:
    from fusioncache.cache.cache import Cache, default_cache
    from fusioncache.precompile.warm import Warmed, warm
    from fusioncache.record.stats import Stats, TemplateStats
    from fusioncache.trace.agreement import CollectiveMismatch
    from fusioncache.trace.executors import executors
    from fusioncache.trace.plugin import Plugin
    from fusioncache.trace.transform import FusionCache
    from fusioncache.verification.verifier import VerificationError

__version__ = "0.1.0"
__all__ = [
    "Cache",
    "CollectiveMismatch",
    "FusionCache",
    "Plugin",
    "Stats",
    "TemplateStats",
    "VerificationError",
    "Warmed",
    "default_cache",
    "executors",
    "warm",
]

_HOME = {
    "Cache": "cache.cache",
    "CollectiveMismatch": "trace.agreement",
    "FusionCache": "trace.transform",
    "Plugin": "trace.plugin",
    "Stats": "record.stats",
    "TemplateStats": "record.stats",
    "VerificationError": "verification.verifier",
    "Warmed": "precompile.warm",
    "default_cache": "cache.cache",
    "executors": "trace.executors",
    "warm": "precompile.warm",
}


def __getattr__(name: str) -> Any:
    if name in ("distributed", "tracing"):
        return import_module(f"fusioncache.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fusioncache' has no attribute {name!r}")
    return getattr(import_module(f"fusioncache.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


register_with_thunder()
