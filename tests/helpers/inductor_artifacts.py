"""Graphs for TorchInductor on the CPU, with arguments, and what is kept of them: compiled once for all tests."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache

import torch
from drawn_regions import Sketch

from fusioncache.backends.api import Compiled
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Const, Graph, TensorType

ROWS, COLUMNS = 13, 40


def tensor(dtype: str, *shape: int) -> TensorType:
    return TensorType(dtype, shape, "cpu")


def attention_like(dtype: str) -> Graph:
    """Softmax, a norm, gelu, comparisons, a mask, sums both ways, views; an input and a view among the outputs."""
    s = Sketch()
    full, row, column = (ROWS, COLUMNS), (COLUMNS,), (ROWS,)
    x, y, w, mask = s.input(tensor(dtype, *full)), *map(s.input, (tensor(dtype, *full), tensor(dtype, *row))), None
    mask = s.input(tensor("bool8", *full))
    wide = s.to(x, "float32") if dtype != "float32" else x
    down = (lambda value: s.to(value, dtype)) if dtype != "float32" else (lambda value: value)
    highest = s.op("amax", wide, (1,), type_=tensor("float32", *column))
    spread = s.op("broadcast_in_dim", highest, full, (0,), type_=tensor("float32", *full))
    powers = s.op("exp", s.op("sub", wide, spread))
    total = s.op("sum", powers, (1,), type_=tensor("float32", *column))
    softmax = s.op("div", powers, s.op("broadcast_in_dim", total, full, (0,), type_=tensor("float32", *full)))
    square = s.op("sum", s.op("mul", wide, wide), (1,), type_=tensor("float32", *column))
    scale = s.op("rsqrt", s.op("add", s.op("mul", square, 1 / COLUMNS), 1e-6))
    normed = down(s.op("mul", wide, s.op("broadcast_in_dim", scale, full, (0,), type_=tensor("float32", *full))))
    weight = s.op("broadcast_in_dim", w, full, (1,), type_=tensor(dtype, *full))
    gelu = s.op("mul", wide, s.op("add", s.op("erf", s.op("mul", wide, 0.7071067811865476)), 1.0))
    below = s.op("lt", x, y, type_=tensor("bool8", *full))
    both = s.op("bitwise_and", below, mask)
    picked = s.op("where", both, x, s.op("mul", y, weight), type_=tensor(dtype, *full))
    dropped = s.op("mul", s.to(mask, "float32"), wide)
    outputs = [down(softmax), s.op("mul", normed, weight), down(gelu), both, picked, down(dropped)]
    columns = s.op("sum", wide, (0,), type_=tensor("float32", *row))
    turned = s.op("transpose", x, (1, 0), type_=tensor(dtype, COLUMNS, ROWS))
    return s.graph(*outputs, columns, total, turned, y)


def small() -> Graph:
    """Integers, a tensor without dimensions, constants."""
    s = Sketch()
    i, x, zero = s.input(tensor("int64", 5, 3)), s.input(tensor("float32", 5, 3)), s.input(tensor("float32"))
    spread = s.op("broadcast_in_dim", zero, (5, 3), (), type_=tensor("float32", 5, 3))
    dtype = Const("dtype", "float32")
    ones = s.op("full", (5, 3), float("inf"), device=Const("device", "cpu"), dtype=dtype, type_=tensor("float32", 5, 3))
    whole = s.op("sum", s.op("mul", x, spread), (0, 1), type_=tensor("float32"))
    outputs = [s.op("add", i, 7), s.op("remainder", i, 3), s.op("add", s.to(i, "float32"), x)]
    return s.graph(*outputs, whole, s.op("tanh", zero), s.op("maximum", x, s.op("neg", ones)))


def sum_of_two() -> Graph:
    s = Sketch()
    x, y = s.input(tensor("float32", 4, 6)), s.input(tensor("float32", 4, 6))
    return s.graph(s.op("tanh", s.op("add", x, y)))


def products() -> Graph:
    """Matrix products of two and three dimensions, with and without something added, which are left to torch."""
    s = Sketch()
    x, w, b = s.input(tensor("float32", 4, 6)), s.input(tensor("float32", 5, 6)), s.input(tensor("float32", 5))
    p, q = s.input(tensor("float32", 3, 4, 6)), s.input(tensor("float32", 3, 6, 5))
    turned = s.op("transpose", w, (1, 0), type_=tensor("float32", 6, 5))
    plain = s.op("matmul", s.op("tanh", x), turned, type_=tensor("float32", 4, 5))
    added = s.op("linear", x, w, b, type_=tensor("float32", 4, 5))
    return s.graph(plain, s.op("tanh", added), s.op("matmul", p, q, type_=tensor("float32", 3, 4, 5)))


def only_views() -> Graph:
    s = Sketch()
    x = s.input(tensor("float32", 4, 6))
    return s.graph(s.op("transpose", x, (1, 0), type_=tensor("float32", 6, 4)), x)


def dense(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, y, w = (torch.randn(shape).to(dtype) for shape in ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,)))
    return [x, y, w, torch.rand(ROWS, COLUMNS) > 0.1]


def strided(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(COLUMNS, ROWS).to(dtype).t(), torch.randn(ROWS, 2 * COLUMNS).to(dtype)[:, 1::2]
    return [x, y, torch.randn(1).to(dtype).expand(COLUMNS), torch.rand(ROWS, 1).expand(ROWS, COLUMNS) > 0.1]


def some() -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randint(-9, 9, (5, 3)), torch.randn(5, 3), torch.randn(())]


def factors() -> list[torch.Tensor]:
    torch.manual_seed(4)
    return [torch.randn(shape) for shape in ((4, 6), (5, 6), (5,), (3, 4, 6), (3, 6, 5))]


def two() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(4, 6), torch.randn(4, 6)]


def causal_mask() -> Graph:
    """Nothing comes in: all that is known of where it runs is in what it makes."""
    s = Sketch()
    kind = {"device": Const("device", "cpu"), "dtype": Const("dtype", "int64"), "type_": tensor("int64", 6)}
    counted = s.op("iota", 6, start=0, step=1, **kind)
    columns = s.op("broadcast_in_dim", counted, (6, 6), (1,), type_=tensor("int64", 6, 6))
    rows = s.op("broadcast_in_dim", counted, (6, 6), (0,), type_=tensor("int64", 6, 6))
    hidden = s.op("gt", columns, rows, type_=tensor("bool8", 6, 6))
    return s.graph(s.op("where", hidden, float("-inf"), 0.0, type_=tensor("float32", 6, 6)), hidden)


CASES: dict[str, Callable[[], tuple[Graph, list[torch.Tensor]]]] = {
    "float32": lambda: (attention_like("float32"), dense(torch.float32)),
    "bfloat16": lambda: (attention_like("bfloat16"), strided(torch.bfloat16)),
    "small": lambda: (small(), some()),
    "two": lambda: (sum_of_two(), two()),
    "products": lambda: (products(), factors()),
    "views": lambda: (only_views(), two()[:1]),
    "mask": lambda: (causal_mask(), []),
}


def digest(outputs: Sequence[torch.Tensor]) -> str:
    """Of dtypes, sizes, strides and every bit."""
    found = hashlib.sha256()
    for output in outputs:
        found.update(f"{output.dtype} {tuple(output.shape)} {output.stride()}".encode())
        found.update(output.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@cache
def made(name: str) -> Compiled:
    """A case as it was compiled and kept."""
    found = Inductor().persist(*CASES[name]())
    assert found.artifacts is not None, found.reason
    return found


def artifacts_of(found: Compiled) -> dict[str, bytes]:
    """What is stored of it, to be changed at will."""
    assert found.artifacts is not None
    return dict(found.artifacts)
