"""Thunder's module of translators to nvFuser.

To import it fails where nvFuser does not work: import this where it is needed.
"""

from __future__ import annotations

import thunder.executors.nvfuserex_impl as nvfuser_executor

__all__ = [
    "nvfuser_executor",
]
