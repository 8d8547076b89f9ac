"""Regions as JSON, to be read again by another process. Everything that is read is checked."""

from __future__ import annotations

from typing import Any

from fusioncache.ir import strict_json
from fusioncache.ir.graph import Arg, Const, Graph, Op, argument_refs, operands, refs_in
from fusioncache.ir.strict_json import Value
from fusioncache.ir.template import Instance
from fusioncache.ir.types import NumberType, Ref, TensorType, ValueType

FORMAT = 1

GRAPH_FIELDS = ("inputs", "ops", "outputs", "sizes")
"""The fields that ``encode_graph`` writes, in the order in which ``decode_graph`` takes them."""


def encode(instance: Instance) -> bytes:
    """Writes an instance of a template as JSON. Equal instances have equal bytes."""
    positions = {"arguments": instance.inputs, "results": instance.outputs}
    return strict_json.encode({"format": FORMAT, **encode_graph(instance.region), **positions})


def decode(content: bytes) -> Instance:
    """Reads the instance that was encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    *graph, arguments, results = strict_json.decode(content, "region", format=FORMAT).fields(
        *GRAPH_FIELDS, "arguments", "results"
    )
    instance = Instance(decode_graph(*graph), arguments.integers(), results.integers())
    if sorted(instance.inputs) != list(range(len(instance.region.inputs))):
        raise ValueError("arguments that are not the region's inputs")
    if not all(position < len(instance.region.outputs) for position in instance.outputs):
        raise ValueError("a result that the region does not have")
    return instance


def encode_graph(graph: Graph) -> dict[str, Any]:
    """Returns a graph as fields of a body."""
    return {
        "inputs": [_encode_type(type_) for type_ in graph.inputs],
        "ops": [_encode_op(op) for op in graph.ops],
        "outputs": graph.outputs,
        "sizes": graph.sizes,
    }


def decode_graph(inputs: Value, ops: Value, outputs: Value, sizes: Value) -> Graph:
    """Returns the graph in the fields of a body, in which each value is defined before it is used.

    Raises:
        ValueError: if there is no such graph in them.
    """
    types = tuple(map(_decode_input, inputs.items()))
    graph = Graph(types, tuple(map(_decode_op, ops.items())), outputs.integers(), sizes.integer())
    _check(graph)
    return graph


def _encode_type(type_: ValueType | None) -> Any:
    if isinstance(type_, TensorType):
        sizes = [_encode_arg(size) if isinstance(size, Ref) else size for size in type_.shape]
        return [type_.dtype, sizes, type_.device]
    return type_.python_type if type_ else None


def _decode_type(value: Value) -> ValueType | None:
    if value.content is None:
        return None
    if isinstance(value.content, str):
        return NumberType(value.text())
    dtype, shape, device = value.items(3)
    sizes = tuple(_decode_ref(size) if size.has("ref") else size.integer() for size in shape.items())
    return TensorType(dtype.text(), sizes, device.text())


def _decode_input(value: Value) -> ValueType:
    type_ = _decode_type(value)
    if type_ is None:
        raise value.error("the type of an input")
    return type_


def _encode_arg(arg: Arg) -> Any:
    if isinstance(arg, Ref):
        return {"ref": arg.index}
    if isinstance(arg, Const):
        return {"kind": arg.kind, "text": arg.text}
    return [_encode_arg(item) for item in arg]


def _decode_arg(value: Value) -> Arg:
    if isinstance(value.content, list):
        return tuple(map(_decode_arg, value.items()))
    if value.has("ref"):
        return _decode_ref(value)
    kind, text = value.fields("kind", "text")
    return Const(kind.text(), text.text())


def _decode_ref(value: Value) -> Ref:
    (index,) = value.fields("ref")
    return Ref(index.integer())


def _encode_op(op: Op) -> Any:
    kwargs = [[name, _encode_arg(arg)] for name, arg in op.kwargs]
    return [op.name, [_encode_arg(arg) for arg in op.args], [_encode_type(type_) for type_ in op.outputs], kwargs]


def _decode_op(value: Value) -> Op:
    name, args, outputs, kwargs = value.items(4)
    named = [item.items(2) for item in kwargs.items()]
    return Op(
        name.text(),
        tuple(map(_decode_arg, args.items())),
        tuple(map(_decode_type, outputs.items())),
        tuple((keyword.text(), _decode_arg(arg)) for keyword, arg in named),
    )


def _check(graph: Graph) -> None:
    known = graph.first_result
    for op, first in graph.results():
        known = first + len(op.outputs)
        early = all(index < first for _, index in argument_refs(op))
        if not early or not all(index < known for _, index in operands(op)):
            raise ValueError(f"{op.name} uses what is not computed yet")
    sizes = [index for type_ in graph.inputs for _, index in refs_in(type_)]
    if not all(index < graph.first_result for index in sizes):
        raise ValueError("an input with a size that is computed later")
    if not all(index < known for index in graph.outputs):
        raise ValueError("an output that nothing computes")
