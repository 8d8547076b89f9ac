"""The one cache that a process shares unless told otherwise."""

from __future__ import annotations

from functools import cache

from fusioncache.cache.cache import Cache


@cache
def default_cache() -> Cache:
    """The process's cache, made when it is first asked for."""
    return Cache()
