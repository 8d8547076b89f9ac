"""No garbage collection while Thunder traces and transforms: it would look through millions of objects that stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from fusioncache.process.collector import collect_behind, without_collector


def pause_collector(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pauses the collector in the context in which Thunder traces, and in that in which it transforms.

    It enters that context also to try each program that is there. Of these there are as many as calls that missed, or
    fewer after an error; but then it has not noted yet that this search has ended.
    """

    @wraps(original)
    def compile_data_and_stats(cd: Any, cs: Any, /) -> Any:
        context = original(cd, cs)
        return _paused(context) if _is_compiling(cs) else context

    return compile_data_and_stats


def _is_compiling(statistics: Any) -> bool:
    try:
        found_nothing = statistics.last_trace_cache_stop >= statistics.last_trace_cache_start
        return bool(found_nothing and statistics.cache_misses > len(statistics.interpreter_cache))
    except Exception:  # something else than what Thunder counts in
        return False


@contextmanager
def _paused(context: Any) -> Iterator[None]:
    begun = time.perf_counter()
    with without_collector(), context:
        yield
    collect_behind(time.perf_counter() - begun)
