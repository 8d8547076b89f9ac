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
    from fusioncache.accelerators.precompile.warm import Warmed, warm
    from fusioncache.accelerators.schedule.scheduling import CollectiveMismatch
    from fusioncache.cache.cache import Cache, default_cache
    from fusioncache.fusion_cache import FusionCache, Plugin, executors
    from fusioncache.observe.record.stats import Stats, TemplateStats
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
    "CollectiveMismatch": "accelerators.schedule.scheduling",
    "FusionCache": "fusion_cache",
    "Plugin": "fusion_cache",
    "Stats": "observe.record.stats",
    "TemplateStats": "observe.record.stats",
    "VerificationError": "verification.verifier",
    "Warmed": "accelerators.precompile.warm",
    "default_cache": "cache.cache",
    "executors": "fusion_cache",
    "warm": "accelerators.precompile.warm",
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
