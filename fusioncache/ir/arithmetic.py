"""What a compiler makes of the arithmetic that a graph asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a value's bits do not depend on, when the ops around it move to another kernel.

    Attributes:
        rounds: whether a value that the graph rounds to fewer than 32 bits is rounded for the ops behind it as well,
            and not only where it leaves the kernel.
        contracts_alike: whether a product and the add behind it, once both are in one graph, are always one rounding or
            always two.
    """

    rounds: bool
    contracts_alike: bool


AS_WRITTEN = Arithmetic(rounds=True, contracts_alike=True)
"""Of a compiler whose results are those of the graph, op by op, but for contraction, which follows from the graph."""
