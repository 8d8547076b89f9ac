"""Random regions that can be drawn at any sizes: they compute the same function even if sizes coincide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from drawn_regions import Sketch, evaluate
from hypothesis import strategies as st

from fusioncache.ir import Ref, TensorType, Value
from fusioncache.template.canonical import Canonical
from fusioncache.template.generalization import Generalization, find_places, write_general_graph
from fusioncache.template.plan import inline

WIDEST = 13
"""The size that is padded to."""

Step = tuple[str, int, int]
"""A kind of operation, the number of its operand among the values so far, and a number that makes all other choices."""

Shape = tuple[str, ...]
"""The symbolic sizes of a tensor: see ``Setting.sizes``."""
INPUTS: tuple[Shape, ...] = (("B", "T", "D"), ("B", "T", "D"), ("B", "D", "T"), ("T", "D"), ("D", "T"), ("D",), ("T",))


@dataclass(frozen=True, slots=True)
class Setting:
    batch: int
    length: int
    width: int
    numbers: tuple[float, float]

    def sizes(self):
        sizes = {"B": self.batch, "T": self.length, "D": self.width, "M": WIDEST}
        return sizes | {"T//2": self.length // 2, "B*T": self.batch * self.length, "M-T": WIDEST - self.length}

    def measure(self, shape: Shape) -> tuple[int, ...]:
        sizes = self.sizes()
        return tuple(sizes[size] for size in shape)


def _choose(step: Step, setting: Setting, values: Mapping[Ref, Shape]) -> tuple[str, Shape, Sequence[object]]:
    """Returns an operation, the shape of its result and its arguments; a sine if the step does not fit its operand."""
    name, one, other = step
    value, shape = list(values.items())[one % len(values)]
    halved, widened = (tuple(new if size == "T" else size for size in shape) for new in ("T//2", "M"))
    place = other % (len(shape) + 1)
    spread = (*shape[:place], "BTDM"[other % 4], *shape[place:])
    match name:
        case "scale":
            number = (*setting.numbers, 0.5, 1.0, 0.0)[other % 5]
            return ("mul", "add", "sub")[other % 3], shape, (value, number)
        case "combine":
            alike = [each for each, its in values.items() if its == shape]
            return ("add", "mul", "sub", "maximum")[other % 4], shape, (value, alike[other % len(alike)])
        case "reduce" if shape:
            dimension = other % len(shape)
            return "sum", (*shape[:dimension], *shape[dimension + 1 :]), (value, (dimension,))
        case "spread" if len(spread) < 4:
            kept = tuple(dimension for dimension in range(len(spread)) if dimension != place)
            return "broadcast_in_dim", spread, (value, setting.measure(spread), kept)
        case "merge" if shape[:2] == ("B", "T"):
            return "reshape", ("B*T", *shape[2:]), (value, setting.measure(("B*T", *shape[2:])))
        case "pad" if widened != shape:
            config = tuple((0, setting.sizes()["M-T"] if size == "T" else 0, 0) for size in shape)
            return "pad", widened, (value, 0.0, config)
        case "cut" if halved != shape:
            return "slice_prim", halved, (value, (0,) * len(halved), setting.measure(halved))
        case "turn":
            return "transpose", shape[::-1], (value, tuple(reversed(range(len(shape)))))
        case "make":
            return "full", shape, (setting.measure(shape), 0.25)
        case "count":
            return "iota", ("T",), (setting.length,)
    return "sin", shape, (value,)


STEPS = ("scale", "combine", "combine", "reduce", "spread", "merge", "pad", "cut", "turn", "make", "count")


def recipes() -> st.SearchStrategy[list[Step]]:
    pick = st.integers(0, 59)
    return st.lists(st.tuples(st.sampled_from(STEPS), pick, pick), min_size=1, max_size=9)


def settings_of_sizes(sizes: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[Setting]:
    """Returns a strategy of settings whose sizes often coincide, with each other and with special sizes."""
    sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 12, 13]) if sizes is None else sizes
    numbers = st.tuples(*[st.sampled_from([0.1, 0.25, 3.0, -1.0])] * 2)
    return st.builds(Setting, sizes, sizes, sizes, numbers)


def draw_region(recipe, setting):
    sketch = Sketch()
    values = {sketch.input(TensorType("float32", setting.measure(shape), "cpu")): shape for shape in INPUTS}
    for step in recipe:
        name, shape, args = _choose(step, setting, values)
        values[sketch.op(name, *args, type_=TensorType("float32", setting.measure(shape), "cpu"))] = shape
    return sketch.graph(*list(values)[len(INPUTS) :][-2:])


def evaluate_general(
    general: Generalization, values: Sequence[Value], canonical: Canonical, inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the outputs of a region, computed by the graph of a generalization with these values of its variables."""
    places, binding = find_places(general), canonical.binding
    numbers = [value for value, place in zip(values, places, strict=True) if place is None]
    slots, terms = binding.arguments[: len(binding.slots)], binding.arguments[len(binding.slots) :]
    arguments = [
        *(inputs[slot] for slot in slots),
        *(value if isinstance(value, int) else np.float32(float.fromhex(value.text)) for value in numbers),
        *(inputs[term] for term in terms),
    ]
    results = evaluate(inline(write_general_graph(general, places), binding.arities), arguments)
    return [results[position] for position in binding.outputs]
