"""Answers one argument by a function: ``python -m benchmarks.common.serve MODULE:FUNCTION ARGUMENT FILE``."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from benchmarks.common.processes import serve


def find_function(target: str) -> Any:
    """Returns the function of ``"package.module:function"``."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    target = sys.argv.pop(1)
    serve(lambda argument: find_function(target)(argument))
