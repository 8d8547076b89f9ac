"""An executor that fuses nothing, and warns once if regions of another executor are not shared.

Where nvFuser makes the regions, nothing of fusioncache's takes part in a trace without the transform. Thunder calls
each fusion executor that it was given, so this one stands behind nvFuser and looks at the trace that it left.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fusioncache.process.warning import warn_once
from fusioncache.thunder_adapter.api import BoundSymbol, FusionExecutor
from fusioncache.transform.executor import ALONE, has_transform


class UnsharedCheck(FusionExecutor):
    """Warns once if a trace has regions, and its function lacks the ``FusionCache`` transform. Changes no trace."""

    required_ops: frozenset[str] = frozenset()
    """Thunder's word for an executor that does not fuse in general."""

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """See Thunder."""
        return False

    def cache_key(self) -> str:
        """Returns what programs depend on that it takes part in: nothing."""
        return str(self.name)

    def fusion_pass(self, trace: Any) -> Any:
        """Returns the trace as it is. Thunder calls this, once for each trace."""
        if any(symbol.sym.is_fusion for symbol in trace.bound_symbols) and not has_transform():
            warn_once(ALONE)
        return trace


@cache
def unshared_check() -> UnsharedCheck:
    """Returns the check, the same each time."""
    return UnsharedCheck("fusioncache_check")
