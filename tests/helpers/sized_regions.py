"""Random regions that can be drawn at any sizes: what they compute is the same, whatever falls together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from drawn_regions import Sketch, evaluate
from hypothesis import strategies as st

from fusioncache.ir import Graph, Ref, TensorType, Value
from fusioncache.template.canonical import Canonical
from fusioncache.template.generalization import Generalization, write_general_graph
from fusioncache.template.plan import inline

WIDEST = 13
"""What is padded is padded to this."""

Shape = tuple[str, ...]
"""The sizes of a tensor, as what they are: see ``Setting.measure``."""

Step = tuple[str, int, int]
"""What is computed, and of which of the values so far."""

INPUTS: tuple[Shape, ...] = (("B", "T", "D"), ("B", "T", "D"), ("B", "D", "T"), ("T", "D"), ("D", "T"), ("D",), ("T",))


@dataclass(frozen=True, slots=True)
class Setting:
    """The sizes and numbers at which a recipe is drawn."""

    batch: int
    length: int
    width: int
    numbers: tuple[float, float]

    def measure(self, size: str) -> int:
        """The size of this name."""
        return self.sizes()[size]

    def sizes(self) -> dict[str, int]:
        """All sizes, by what they are."""
        sizes = {"B": self.batch, "T": self.length, "D": self.width, "M": WIDEST}
        return sizes | {"T//2": self.length // 2, "B*T": self.batch * self.length, "M-T": WIDEST - self.length}

    def type_of(self, shape: Shape) -> TensorType:
        return TensorType("float32", tuple(map(self.measure, shape)), "cpu")


class _Drawing:
    """One region, drawn step by step."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.sketch = Sketch()
        self.values = [(self.sketch.input(setting.type_of(shape)), shape) for shape in INPUTS]

    def draw(self, name: str, shape: Shape, *args: object) -> None:
        self.values.append((self.sketch.op(name, *args, type_=self.setting.type_of(shape)), shape))

    def take(self, step: Step) -> None:
        """Draws one step; one that does not fit the value's shape is a sine."""
        name, one, other = step
        value, shape = self.values[one % len(self.values)]
        if not getattr(self, name)(value, shape, other):
            self.draw("sin", shape, value)

    def scale(self, value: Ref, shape: Shape, other: int) -> bool:
        self.draw(("mul", "add", "sub")[other % 3], shape, value, (*self.setting.numbers, 0.5, 1.0, 0.0)[other % 5])
        return True

    def combine(self, value: Ref, shape: Shape, other: int) -> bool:
        alike = [value for value, its in self.values if its == shape]
        self.draw(("add", "mul", "sub", "maximum")[other % 4], shape, value, alike[other % len(alike)])
        return True

    def reduce(self, value: Ref, shape: Shape, other: int) -> bool:
        dimension = other % max(1, len(shape))
        if shape:
            self.draw("sum", (*shape[:dimension], *shape[dimension + 1 :]), value, (dimension,))
        return bool(shape)

    def spread(self, value: Ref, shape: Shape, other: int) -> bool:
        new, place = ("B", "T", "D", "M")[other % 4], other % (len(shape) + 1)
        wide = (*shape[:place], new, *shape[place:])
        kept = tuple(dimension for dimension in range(len(wide)) if dimension != place)
        if len(wide) < 4:
            self.draw("broadcast_in_dim", wide, value, tuple(map(self.setting.measure, wide)), kept)
        return len(wide) < 4

    def merge(self, value: Ref, shape: Shape, other: int) -> bool:
        flat = ("B*T", *shape[2:])
        if shape[:2] == ("B", "T"):
            self.draw("reshape", flat, value, tuple(map(self.setting.measure, flat)))
        return shape[:2] == ("B", "T")

    def pad(self, value: Ref, shape: Shape, other: int) -> bool:
        wide = tuple("M" if size == "T" else size for size in shape)
        if wide != shape:
            config = tuple((0, self.setting.measure("M-T") if size == "T" else 0, 0) for size in shape)
            self.draw("pad", wide, value, 0.0, config)
        return wide != shape

    def cut(self, value: Ref, shape: Shape, other: int) -> bool:
        half = tuple("T//2" if size == "T" else size for size in shape)
        if half != shape:
            self.draw("slice_prim", half, value, (0,) * len(half), tuple(map(self.setting.measure, half)))
        return half != shape

    def turn(self, value: Ref, shape: Shape, other: int) -> bool:
        self.draw("transpose", shape[::-1], value, tuple(reversed(range(len(shape)))))
        return True

    def make(self, value: Ref, shape: Shape, other: int) -> bool:
        self.draw("full", shape, tuple(map(self.setting.measure, shape)), 0.25)
        return True

    def count(self, value: Ref, shape: Shape, other: int) -> bool:
        self.draw("iota", ("T",), self.setting.length)
        return True


STEPS = ("scale", "combine", "combine", "reduce", "spread", "merge", "pad", "cut", "turn", "make", "count")


def recipes() -> st.SearchStrategy[list[Step]]:
    """What to compute, at any sizes."""
    pick = st.integers(0, 59)
    return st.lists(st.tuples(st.sampled_from(STEPS), pick, pick), min_size=1, max_size=9)


def settings_of_sizes(sizes: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[Setting]:
    """Sizes that often fall together, with each other and with what is special."""
    sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 12, 13]) if sizes is None else sizes
    numbers = st.tuples(*[st.sampled_from([0.1, 0.25, 3.0, -1.0])] * 2)
    return st.builds(Setting, sizes, sizes, sizes, numbers)


def draw_region(recipe: list[Step], setting: Setting) -> Graph:
    """The region of a recipe at these sizes. Its outputs are the last value and the one before."""
    drawing = _Drawing(setting)
    for step in recipe:
        drawing.take(step)
    return drawing.sketch.graph(*(value for value, _ in drawing.values[len(INPUTS) :][-2:]))


def evaluate_general(
    general: Generalization, values: Sequence[Value], canonical: Canonical, inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The outputs of a region, computed by the graph of a generalization that has these values for it."""
    written, binding = write_general_graph(general), canonical.binding
    numbers = [values[variable.number] for variable in written.numbers]
    slots, terms = binding.arguments[: len(binding.slots)], binding.arguments[len(binding.slots) :]
    arguments = [
        *(inputs[slot] for slot in slots),
        *(value if isinstance(value, int) else np.float32(float.fromhex(value.text)) for value in numbers),
        *(inputs[term] for term in terms),
    ]
    results = evaluate(inline(written.graph, binding.arities), arguments)
    return [results[position] for position in binding.outputs]
