"""What planners ask of the compilers of a trace's regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusioncache.ir import AS_WRITTEN, Arithmetic


def _as_written(fusion: Any) -> Arithmetic:
    return AS_WRITTEN


def _ignore(reason: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Compilers:
    """The compilers of a trace's regions, as far as planners must know them.

    Attributes:
        arithmetic: of the one that makes a kernel of this fused call.
        left: is told why a stream, or a sum, is left as it is.
    """

    arithmetic: Callable[[Any], Arithmetic] = _as_written
    left: Callable[[str], None] = _ignore


UNKNOWN = Compilers()
"""Compilers that compute what is written, and nobody who is told what is left."""
