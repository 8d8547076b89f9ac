"""The definition of saved seconds, and the parts that they are computed from.

Saved are the seconds that this process would have spent longer without fusioncache, on compiling regions and on
deriving programs, less the seconds that fusioncache itself took for that: loading, keys, canonicalizing, storing
programs. Negative is a loss.

Three things are left out. A compiler's one-time start is counted by itself, because Thunder alone pays it as well.
Faster tracing and faster later steps are not counted: only Thunder itself could tell how long it would have taken.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alone:
    """The seconds that Thunder alone spends on the regions that one executable serves.

    Attributes:
        first: on the first region.
        again: on each further equal region. It is less than ``first`` where the compiler has a cache of its own.
    """

    first: float
    again: float


def repeats_of(hits: int, arities: int, executables: int) -> tuple[int, int]:
    """Returns how many regions repeat one that was compiled, and to how many kinds of region the executables belong.

    Regions of one template with other arities are other regions to a compiler. Where each of them has an executable,
    the first region of each is compiled here too, and saves nothing. Where folds serve them all, each saves a compile.

    Args:
        hits: regions whose template was known.
        arities: how many arities the template's regions have.
        executables: how many were compiled or loaded for the template.
    """
    if arities > 1 and executables >= arities:
        return max(hits - (arities - 1), 0), arities
    return hits, 1
