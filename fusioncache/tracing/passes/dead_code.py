"""Dead code found without collecting an operation's tags anew for each operation that it consists of."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.tracing.replacement import Replacement


def replacements() -> tuple[Replacement, ...]:
    """Returns what this group of shortcuts replaces."""
    from thunder.core import transform_common

    name = "_remove_noop_subsymbols"
    return (Replacement(transform_common, name, "0192b11c62a84554", shorten_remove_noop, everywhere=True),)


def shorten_remove_noop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Asks once whether an operation has the tag, which can only get lost while operations are removed from it."""
    from thunder.core import symbol
    from thunder.core.prims import OpTags

    tags = {OpTags.DONT_DCE}

    @wraps(original)
    def _remove_noop_subsymbols(bsym: Any) -> None:
        kept: list[Any] = []
        has_tag = True
        for each in bsym.subsymbols:
            if len(each.subsymbols) == 0 and not each.sym.is_prim:
                continue
            has_tag = has_tag and symbol.has_tags(bsym, tags)
            if not has_tag and not each.flat_proxy_outs:
                continue
            _remove_noop_subsymbols(each)
            kept.append(each)
        bsym.subsymbols = kept

    return _remove_noop_subsymbols
