"""Regions as JSON, to be read again by another process. What is read is checked: nothing is trusted to be ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fusioncache.ir.graph import Arg, Const, Graph, Op, operands, refs_in
from fusioncache.ir.template import Instance
from fusioncache.ir.types import NumberType, Ref, TensorType, ValueType

FORMAT = 1


def encoded(instance: Instance) -> bytes:
    """A region and how it lies in its template. Equal ones have equal bytes."""
    places = {"arguments": instance.inputs, "results": instance.outputs}
    return written({"format": FORMAT, **graph_out(instance.region), **places})


def decoded(content: bytes) -> Instance:
    """The region that was encoded.

    Raises:
        ValueError: if it is none, or of another format.
    """
    return read(content, FORMAT, _instance)


def written(body: Mapping[str, Any]) -> bytes:
    """A body as JSON. Equal ones have equal bytes."""
    return json.dumps(body, separators=(",", ":")).encode()


def read[T](content: bytes, format_: int, parse: Callable[[Any], T]) -> T:
    """What ``parse`` makes of the body of this format.

    Raises:
        ValueError: if there is none, or ``parse`` fails.
    """
    try:
        body = json.loads(content)
        if body["format"] != format_:
            raise ValueError(f"data of format {body['format']!r}, not {format_}")
        return parse(body)
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not what it should be: {error!r}") from error


def graph_out(graph: Graph) -> dict[str, Any]:
    """A graph as part of a body."""
    return {
        "inputs": [_type_out(type_) for type_ in graph.inputs],
        "ops": [_op_out(op) for op in graph.ops],
        "outputs": graph.outputs,
        "sizes": graph.sizes,
    }


def graph_in(body: Any) -> Graph:
    """The graph in a body: each value is defined before it is used.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: if there is none.
    """
    inputs = tuple(_checked(_type_in(type_)) for type_ in body["inputs"])
    graph = Graph(inputs, tuple(map(_op_in, body["ops"])), numbers(body["outputs"]), number(body["sizes"]))
    _check(graph)
    return graph


def number(item: Any) -> int:
    """A number of something.

    Raises:
        ValueError: if it is none.
    """
    if type(item) is not int or item < 0:
        raise ValueError(f"{item!r} is no number of anything")
    return item


def numbers(items: Any) -> tuple[int, ...]:
    """Numbers of something."""
    return tuple(map(number, items))


def text(item: Any) -> str:
    """A text.

    Raises:
        ValueError: if it is none.
    """
    if not isinstance(item, str):
        raise ValueError(f"{item!r} is no text")
    return item


def _instance(body: Any) -> Instance:
    instance = Instance(graph_in(body), numbers(body["arguments"]), numbers(body["results"]))
    if sorted(instance.inputs) != list(range(len(instance.region.inputs))):
        raise ValueError("arguments that are not the region's inputs")
    if not all(place < len(instance.region.outputs) for place in instance.outputs):
        raise ValueError("a result that is no output")
    return instance


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
    sizes = tuple(_ref(size) if isinstance(size, dict) else number(size) for size in shape)
    return TensorType(text(dtype), sizes, text(device))


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
    return _ref(item) if "ref" in item else Const(text(item["kind"]), text(item["text"]))


def _op_out(op: Op) -> Any:
    kwargs = [[name, _arg_out(arg)] for name, arg in op.kwargs]
    return [op.name, [_arg_out(arg) for arg in op.args], [_type_out(type_) for type_ in op.outputs], kwargs]


def _op_in(item: Any) -> Op:
    name, args, outputs, kwargs = item
    named = tuple((text(word), _arg_in(arg)) for word, arg in kwargs)
    return Op(text(name), tuple(map(_arg_in, args)), tuple(map(_type_in, outputs)), named)


def _ref(item: Any) -> Ref:
    return Ref(number(item["ref"]))


def _check(graph: Graph) -> None:
    known = graph.first_result
    for op, first in graph.results():
        known = first + len(op.outputs)
        used = [*refs_in(op.args), *refs_in(tuple(arg for _, arg in op.kwargs))]
        if not all(index < first for _, index in used) or not all(index < known for _, index in operands(op)):
            raise ValueError(f"{op.name} uses what is not computed yet")
    sizes = [index for type_ in graph.inputs for _, index in refs_in(type_)]
    if not all(index < graph.first_result for index in sizes):
        raise ValueError("an input with a size that is computed later")
    if not all(index < known for index in graph.outputs):
        raise ValueError("an output that nothing computes")
