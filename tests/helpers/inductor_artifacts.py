"""Graphs for TorchInductor on the CPU, with arguments and artifacts, which are compiled once for all tests."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache

import torch
from drawn_regions import draw

from fusioncache.backends.api import Compiled
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Graph, TensorType

ROWS, COLUMNS = FULL = (13, 40)


def attention_like(dtype: str) -> Graph:
    """Returns a graph of softmax, a norm, gelu, comparisons, a mask, sums both ways; it outputs an input and views."""

    def spread(column: str) -> str:
        return f"broadcast_in_dim({column}, {FULL}, (0,))"

    def down(value: str) -> str:
        return value if dtype == "float32" else f"convert_element_type({value}, '{dtype}')"

    wide = "x" if dtype == "float32" else "convert_element_type(x, 'float32')"
    powers = f"exp(sub({wide}, {spread(f'amax({wide}, (1,))')}))"
    scale = f"rsqrt(add(mul(sum(mul({wide}, {wide}), (1,)), {1 / COLUMNS}), 1e-6))"
    weight = f"broadcast_in_dim(w, {FULL}, (1,))"
    both = "bitwise_and(lt(x, y), mask)"
    return draw(
        down(f"div({powers}, {spread(f'sum({powers}, (1,))')})"),
        f"mul({down(f'mul({wide}, {spread(scale)})')}, {weight})",
        down(f"mul({wide}, add(erf(mul({wide}, 0.7071067811865476)), 1.0))"),
        both,
        f"where({both}, x, mul(y, {weight}))",
        down(f"mul(convert_element_type(mask, 'float32'), {wide})"),
        f"sum({wide}, (0,))",
        f"sum({powers}, (1,))",
        "transpose(x, (1, 0))",
        "y",
        **{name: TensorType(dtype, shape, "cpu") for name, shape in {"x": FULL, "y": FULL, "w": (COLUMNS,)}.items()},
        mask=TensorType("bool8", FULL, "cpu"),
    )


SMALL = draw(
    "add(i, 7)",
    "remainder(i, 3)",
    "add(convert_element_type(i, 'float32'), x)",
    "sum(mul(x, broadcast_in_dim(zero, (5, 3), ())), (0, 1))",
    "tanh(zero)",
    "maximum(x, neg(full((5, 3), inf, device='cpu', dtype='float32')))",
    i=TensorType("int64", (5, 3), "cpu"),
    x=(5, 3),
    zero=(),
)
"""Integers, a tensor without dimensions, constants."""

SUM_OF_TWO = draw("tanh(add(x, y))", x=(4, 6), y=(4, 6))


PRODUCTS = draw(
    "matmul(tanh(x), transpose(w, (1, 0)))",
    "tanh(linear(x, w, b))",
    "matmul(p, q)",
    **{"x": (4, 6), "w": (5, 6), "b": (5,), "p": (3, 4, 6), "q": (3, 6, 5)},
)
"""Matrix products of two and three dimensions, with and without something added, which are left to torch."""


def random(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def strided() -> list[torch.Tensor]:
    x, y, w = random((COLUMNS, ROWS), (ROWS, 2 * COLUMNS), (1,), dtype=torch.bfloat16)
    return [x.t(), y[:, 1::2], w.expand(COLUMNS), torch.rand(ROWS, 1).expand(ROWS, COLUMNS) > 0.1]


def two() -> list[torch.Tensor]:
    return random((4, 6), (4, 6))


def causal_mask() -> Graph:
    """Returns a graph without inputs: only the ops that create tensors name its device."""
    counted = "iota(6, start=0, step=1, device='cpu', dtype='int64')"
    columns, rows = (f"broadcast_in_dim({counted}, (6, 6), ({place},))" for place in (1, 0))
    return draw(f"where(gt({columns}, {rows}), -1e999, 0.0)", f"gt({columns}, {rows})")


CASES: dict[str, Callable[[], tuple[Graph, list[torch.Tensor]]]] = {
    "float32": lambda: (attention_like("float32"), [*random(FULL, FULL, (COLUMNS,)), torch.rand(FULL) > 0.1]),
    "bfloat16": lambda: (attention_like("bfloat16"), strided()),
    "small": lambda: (SMALL, [torch.arange(-7, 8).view(5, 3), *random((5, 3), ())]),
    "two": lambda: (SUM_OF_TWO, two()),
    "products": lambda: (PRODUCTS, random((4, 6), (5, 6), (5,), (3, 4, 6), (3, 6, 5))),
    "views": lambda: (draw("transpose(x, (1, 0))", "x", x=(4, 6)), two()[:1]),
    "mask": lambda: (causal_mask(), []),
}


def digest(outputs: Sequence[torch.Tensor]) -> str:
    """Returns a digest of dtypes, sizes, strides and every bit."""
    found = hashlib.sha256()
    for output in outputs:
        found.update(f"{output.dtype} {tuple(output.shape)} {output.stride()}".encode())
        found.update(output.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@cache
def compile_case(name: str) -> Compiled:
    found = Inductor().persist(*CASES[name]())
    assert found.artifacts is not None, found.reason
    return found


def artifacts_of(found: Compiled) -> dict[str, bytes]:
    assert found.artifacts is not None
    return dict(found.artifacts)
