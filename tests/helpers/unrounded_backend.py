"""A compiler like TorchInductor, without one: it computes narrow dtypes in float32, and rounds where it stores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fusioncache.backends.eager import Eager
from fusioncache.ir import Arithmetic, Const, Graph, Op, Ref, TensorType, ValueType, map_arg
from fusioncache.ir.ops import CONVERT, is_narrow


class Unrounded(Eager):
    """Takes the eager backend's place."""

    def arithmetic(self, device: str) -> Arithmetic:
        return Arithmetic(rounds=False, contracts_alike=True)

    def compile(self, graph: Graph, args: Sequence[Any]) -> Any:
        return super().compile(unround(graph), args)


def unround(graph: Graph) -> Graph:
    """The graph with all that is narrow made float32 between its inputs and its outputs."""
    ops: list[Op] = []
    number: dict[int, int] = {}
    types: list[ValueType | None] = list(graph.inputs)

    def append(op: Op) -> int:
        ops.append(op)
        types.extend(op.outputs)
        return len(types) - len(op.outputs)

    def converted(value: int, dtype: str) -> int:
        type_ = types[value]
        assert isinstance(type_, TensorType)
        return append(Op(CONVERT, (Ref(value), Const("dtype", dtype)), (replace(type_, dtype=dtype),)))

    for place, type_ in enumerate(graph.inputs):
        number[place] = converted(place, "float32") if is_narrow(type_) else place
    for op, first in graph.results():
        start = append(_wide(Op(op.name, tuple(_renamed(op.args, number)), op.outputs, op.kwargs)))
        number.update({first + place: start + place for place in range(len(op.outputs))})
    asked = _types(graph)
    outputs = [
        converted(number[value], asked[value].dtype) if is_narrow(asked[value]) else number[value]
        for value in graph.outputs
    ]
    return Graph(graph.inputs, tuple(ops), tuple(outputs))


def _types(graph: Graph) -> list[Any]:
    return [*graph.inputs, *(type_ for op in graph.ops for type_ in op.outputs)]


def _renamed(args: Sequence[Any], number: dict[int, int]) -> Iterator[Any]:
    for arg in args:
        yield map_arg(arg, lambda index: Ref(number[index]))


def _wide(op: Op) -> Op:
    narrow = any(map(is_narrow, op.outputs))
    args = op.args
    if op.name == CONVERT and narrow:
        args = (args[0], Const("dtype", "float32"))
    outputs = tuple(replace(t, dtype="float32") if is_narrow(t) else t for t in op.outputs)  # type: ignore[type-var]
    return Op(op.name, args, outputs, op.kwargs)
