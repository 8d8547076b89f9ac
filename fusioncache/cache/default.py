"""The one cache that a process shares unless told otherwise."""

from __future__ import annotations

from functools import cache

from fusioncache.cache.cache import Cache
from fusioncache.process import forks

_making = forks.lock()


def default_cache() -> Cache:
    """The process's cache, made when it is first asked for, also if several threads ask at once."""
    with _making:
        return make_default_cache()


@cache
def make_default_cache() -> Cache:
    """Returns the same cache each time it is called."""
    return Cache()
