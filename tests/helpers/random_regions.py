"""Random regions, for Hypothesis to draw."""

from drawn_regions import Sketch
from hypothesis import strategies as st

from fusioncache.ir import Graph, TensorType

UNARY, BINARY = ("tanh", "neg", "sin", "abs"), ("add", "add", "mul", "sub", "maximum")
CONSTANTS = (0.0, -0.0, 1.0, 0.1, -3.5)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draws small graphs with much sharing, chains of adds, conversions and constants."""
    sketch = Sketch()
    dtypes = st.sampled_from(["float32", "float32", "float16"])
    inputs = [sketch.input(TensorType(draw(dtypes), (2, 3), "cpu")) for _ in range(draw(st.integers(1, 6)))]
    values = [sketch.to(x, "float32") if sketch.types[x.index].dtype == "float16" else x for x in inputs]
    computed = []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "constant", "chain", "shared"]))
        pick = st.sampled_from(values[-6:] + values[:6])
        if kind == "unary":
            value = sketch.op(draw(st.sampled_from(UNARY)), draw(pick))
        elif kind == "constant":
            value = sketch.op("mul", draw(pick), draw(st.sampled_from(CONSTANTS)))
        elif kind == "binary":
            value = sketch.op(draw(st.sampled_from(BINARY)), draw(pick), draw(pick))
        elif kind == "shared":
            one, value = draw(pick), draw(pick)
            for _ in range(draw(st.integers(2, 30))):  # each value has two uses: paths grow like Fibonacci numbers
                one, value = value, sketch.op("add", one, value)
        else:
            value = draw(pick)
            for term in draw(st.lists(st.sampled_from(values[: len(inputs)]), min_size=1, max_size=4)):
                value = sketch.op("add", value, term)
        values.append(value)
        computed.append(value)
    return sketch.graph(*draw(st.lists(st.sampled_from(computed), min_size=1, max_size=3)))
