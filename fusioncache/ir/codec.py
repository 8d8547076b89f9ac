"""A region as JSON, to be read again by another process. What is read is checked: nothing is trusted to be ours."""

from __future__ import annotations

import json
from typing import Any

from fusioncache.ir.graph import Arg, Const, Graph, Op, operands, refs_in
from fusioncache.ir.template import Original
from fusioncache.ir.types import NumberType, Ref, TensorType, ValueType

FORMAT = 1


def encoded(original: Original) -> bytes:
    """A region and how it lies in its template. Equal ones have equal bytes."""
    graph = original.region
    body = {
        "format": FORMAT,
        "inputs": [_type_out(type_) for type_ in graph.inputs],
        "ops": [_op_out(op) for op in graph.ops],
        "outputs": graph.outputs,
        "sizes": graph.sizes,
        "arguments": original.inputs,
        "results": original.outputs,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def decoded(content: bytes) -> Original:
    """The region that was encoded.

    Raises:
        ValueError: if it is none, or of another format.
    """
    try:
        body = json.loads(content)
        if body["format"] != FORMAT:
            raise ValueError(f"a region of format {body['format']!r}, not {FORMAT}")
        inputs = tuple(_checked(_type_in(type_)) for type_ in body["inputs"])
        ops = tuple(map(_op_in, body["ops"]))
        graph = Graph(inputs, ops, _numbers(body["outputs"]), *_numbers([body["sizes"]]))
        original = Original(graph, _numbers(body["arguments"]), _numbers(body["results"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a region: {error!r}") from error
    _check(original)
    return original


def _type_out(type_: ValueType | None) -> Any:
    if isinstance(type_, TensorType):
        return [type_.dtype, [_arg_out(size) if isinstance(size, Ref) else size for size in type_.shape], type_.device]
    return type_.python_type if type_ else None


def _type_in(item: Any) -> ValueType | None:
    if item is None:
        return None
    if isinstance(item, str):
        return NumberType(item)
    dtype, shape, device = item
    sizes = tuple(_ref(size) if isinstance(size, dict) else _number(size) for size in shape)
    return TensorType(_text(dtype), sizes, _text(device))


def _checked(type_: ValueType | None) -> ValueType:
    if type_ is None:
        raise ValueError("an input without a type")
    return type_


def _arg_out(arg: Arg) -> Any:
    if isinstance(arg, Ref):
        return {"ref": arg.index}
    if isinstance(arg, Const):
        return {"kind": arg.kind, "text": arg.text}
    return [_arg_out(item) for item in arg]


def _arg_in(item: Any) -> Arg:
    if isinstance(item, list):
        return tuple(map(_arg_in, item))
    return _ref(item) if "ref" in item else Const(_text(item["kind"]), _text(item["text"]))


def _op_out(op: Op) -> Any:
    kwargs = [[name, _arg_out(arg)] for name, arg in op.kwargs]
    return [op.name, [_arg_out(arg) for arg in op.args], [_type_out(type_) for type_ in op.outputs], kwargs]


def _op_in(item: Any) -> Op:
    name, args, outputs, kwargs = item
    named = tuple((_text(word), _arg_in(arg)) for word, arg in kwargs)
    return Op(_text(name), tuple(map(_arg_in, args)), tuple(map(_type_in, outputs)), named)


def _ref(item: Any) -> Ref:
    return Ref(_number(item["ref"]))


def _number(item: Any) -> int:
    if type(item) is not int or item < 0:
        raise ValueError(f"{item!r} is no number of anything")
    return item


def _numbers(items: Any) -> tuple[int, ...]:
    return tuple(map(_number, items))


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise ValueError(f"{item!r} is no text")
    return item


def _check(original: Original) -> None:
    """Every value is defined before it is used, and each place is one that there is."""
    graph = original.region
    known = graph.first_result
    for op, first in graph.results():
        known = first + len(op.outputs)
        used = [*refs_in(op.args), *refs_in(tuple(arg for _, arg in op.kwargs))]
        if not all(index < first for _, index in used) or not all(index < known for _, index in operands(op)):
            raise ValueError(f"{op.name} uses what is not computed yet")
    if not all(index < known for index in graph.outputs):
        raise ValueError("an output that nothing computes")
    if sorted(original.inputs) != list(range(len(graph.inputs))):
        raise ValueError("arguments that are not the region's inputs")
    if not all(place < len(graph.outputs) for place in original.outputs):
        raise ValueError("a result that is no output")
