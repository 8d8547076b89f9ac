"""Arguments and results made printable without asking four questions about each number, for each of four occasions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.tracing.passes.leaves import proxy_types
from fusioncache.tracing.replacement import Replacement, is_known

_KNOWN = {"_to_printable": "6d5d96bbeeec1e39", "is_printable": "d8dd342960ca2023"}
_KNOWN_OF_BASE = {
    "is_base_printable": "e69363cb4efc2f1f",
    "is_base_printable_value": "e82747e7a92d2a38",
    "is_base_printable_type": "fcff5b171edb3dfb",
}


def replacements() -> tuple[Replacement, ...]:
    """Returns what this group of shortcuts replaces: nothing if what Thunder asks on the way has changed."""
    from thunder.core import baseutils, codeutils

    questions = [(codeutils, _KNOWN), (baseutils, _KNOWN_OF_BASE)]
    if not all(
        is_known(getattr(module, name), source) for module, known in questions for name, source in known.items()
    ):
        return ()
    return (Replacement(codeutils, "to_printable", "896604dfd4266a6d", shorten_to_printable, everywhere=True),)


def shorten_to_printable(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a proxy, a number or a string as it is, and so a tuple of them, which Thunder would build anew."""
    from thunder.core import baseutils

    values = frozenset((int, float, complex, bool, str)) & frozenset(baseutils._printable_value_types)
    printable = proxy_types().union(values, (type(None),))

    @wraps(original)
    def to_printable(trace: Any, x: Any, *, import_ctx: Any = None, object_ctx: Any = None) -> Any:
        kind = type(x)
        if kind in printable or (kind is tuple and printable.issuperset(map(type, x))):
            return x
        if kind is dict and not x:
            return {}
        return original(trace, x, import_ctx=import_ctx, object_ctx=object_ctx)

    return to_printable
