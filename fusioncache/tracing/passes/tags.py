"""Tags looked for until one is found, where Thunder collects all tags of an operation and of what it consists of."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import repeat
from typing import Any

from fusioncache.tracing.replacement import Replacement


def replacements() -> tuple[Replacement, ...]:
    """Returns what this group of shortcuts replaces."""
    from thunder.core import symbol

    return (Replacement(symbol, "has_tags", "911ba9dc36f65c3d", shorten_has_tags, everywhere=True),)


def shorten_has_tags(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells whether an operation, or one of those it consists of, has any of some tags."""

    @wraps(original)
    def has_tags(bsym: Any, tags: Any) -> bool:
        return _has_any(bsym, tags) if type(tags) is set else original(bsym, tags)

    return has_tags


def _has_any(bsym: Any, tags: set[Any]) -> bool:
    own = bsym.sym.tags
    if own:
        # A symbol's tags are a short list: comparing is faster than hashing, which is not in C for enumerations.
        for tag in tags:
            if tag in own:
                return True
    if bsym.tags and not tags.isdisjoint(bsym.tags):
        return True
    return bool(bsym.subsymbols) and any(map(_has_any, bsym.subsymbols, repeat(tags)))
