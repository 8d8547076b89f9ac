"""Imports the names of Thunder that other folders use, and checks which features this Thunder supports.

Functions that need names of ``api.py`` are deferred while that module is being imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

_API = "fusioncache.thunder_adapter.api"
_waiting: list[Callable[[], None]] = []
_is_complete = False
"""Whether all names of ``api.py`` were imported."""


def load_thunder() -> None:
    """Imports Thunder. The executor of fusioncache is registered with it, unless it was imported before."""
    import thunder  # noqa: F401


def call_with_api(function: Callable[[], None]) -> None:
    """Calls a function that imports names from ``api.py``: now, or at the end of ``api.py`` if that is importing."""
    if _is_complete or _API not in sys.modules:
        function()
    else:
        _waiting.append(function)


def call_waiting() -> None:
    """Calls the deferred functions. The last line of ``api.py`` calls this."""
    global _is_complete

    _is_complete = True
    while _waiting:
        _waiting.pop()()
