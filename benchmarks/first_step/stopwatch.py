"""Seconds by phase, where phases call each other."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any


class Stopwatch:
    """Seconds by phase, each less those of the phases that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]
        self._whole = False

    def time_calls(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, its time counted for a phase."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._whole:
                return function(*args, **kwargs)
            start = time.perf_counter()
            self._inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.perf_counter() - start
                self.seconds[phase] += whole - self._inner.pop()
                self._inner[-1] += whole

        return call

    def time_whole_calls(
        self, phase: str, function: Callable[..., Any], when: Callable[..., bool]
    ) -> Callable[..., Any]:
        """Returns the function, all its time counted for a phase where ``when`` says so of its arguments."""
        timed = self.time_calls(phase, self._without_inner(function))

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return timed(*args, **kwargs) if when(*args, **kwargs) else function(*args, **kwargs)

        return call

    def _without_inner(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._whole = True
            try:
                return function(*args, **kwargs)
            finally:
                self._whole = False

        return call
