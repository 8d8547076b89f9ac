"""Arguments and results made printable without asking four questions about each number, for each of four occasions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.thunder_adapter.passes.leaves import proxy_types


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
