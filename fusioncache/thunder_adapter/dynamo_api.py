"""Thunder's module that its splitter of Dynamo's graphs asks what Thunder supports.

To import it takes long, and a process that never uses Dynamo has no use for it: import this where it is needed.
"""

from __future__ import annotations

from thunder.dynamo import utils

__all__ = [
    "utils",
]
