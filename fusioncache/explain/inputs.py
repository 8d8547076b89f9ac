"""In what the inputs of two graphs differ, and what else follows from that."""

from __future__ import annotations

from collections import defaultdict

from fusioncache.explain.change import Change, listed
from fusioncache.explain.pairing import Pairing, type_of
from fusioncache.explain.types import Aspect, aspects

_DIMENSION = "size of dimension "


class Inputs:
    """The changes of the types of inputs.

    Attributes:
        changes: one for all inputs that differ in one way.
        values: both values of each change.
    """

    def __init__(self, pairing: Pairing):
        groups: dict[Aspect, list[tuple[int, str]]] = defaultdict(list)
        for value in range(len(pairing.a.graph.inputs)):
            other = pairing.to_b.get(value)
            if other is not None and other < len(pairing.b.graph.inputs):
                for name, a, b in aspects(type_of(pairing.a, value), type_of(pairing.b, other)):
                    kind = "size" if name.startswith(_DIMENSION) else name
                    groups[kind, a, b].append((value, name))
        self.changes = [_change(kind, a, b, where) for (kind, a, b), where in groups.items()]
        self.values = frozenset((a, b) for _, a, b in groups)

    def explain(self, a: str, b: str) -> bool:
        """Whether two literals differ as some inputs do: the same dtypes or sizes, or a factor made of the sizes."""
        return (a, b) in self.values or _ratio(a, b) in {
            ratio for x, y in self.values for ratio in (_ratio(x, y), _ratio(y, x)) if ratio
        }


def _change(kind: str, a: str, b: str, where: list[tuple[int, str]]) -> Change:
    names = {name for _, name in where}
    what = f"the {names.pop()}" if len(names) == 1 else f"a {kind}"
    inputs = "input" if len(where) == 1 else "inputs"
    return Change("inputs", f"{what} of {inputs} {listed([f'%{value}' for value, _ in where])}", a, b)


def _ratio(a: str, b: str) -> float | None:
    try:
        return round(float(a) / float(b), 9)
    except (ValueError, ArithmeticError):
        return None
