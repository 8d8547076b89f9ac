"""Requests to compile, as data: enough to ask again, in another process, a backend of another version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusioncache.ir import codec, strict_json
from fusioncache.ir.graph import Graph
from fusioncache.ir.strict_json import Value
from fusioncache.ir.types import Ref, TensorType, ValueType

FORMAT = 1

ArgumentLayout = tuple[Sequence[int], Sequence[int]]
"""Shape and strides of a tensor, in elements."""

ArgumentLayouts = tuple[ArgumentLayout | None, ...]
"""The layout of each argument; None for one that is not a tensor."""

Option = None | bool | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to compile a graph.

    Attributes:
        graph: in canonical order, without parameters.
        layouts: of the arguments.
        backend: the name of the one that was to compile it.
        options: with which that backend was made, by name.
        settings: of the compiling process that another process can make as well, by name.
    """

    graph: Graph
    layouts: ArgumentLayouts
    backend: str
    options: Mapping[str, Option]
    settings: Mapping[str, Option] = field(default_factory=dict)


def encode(request: Request) -> bytes:
    """Writes a request as JSON. Equal requests have equal bytes."""
    body = {
        "format": FORMAT,
        **codec.encode_graph(request.graph),
        "place": encode_layouts(request.layouts),
        "backend": request.backend,
        "options": _encode_options(request.options),
        "settings": _encode_options(request.settings),
    }
    return strict_json.encode(body)


def decode(content: bytes) -> Request:
    """Reads the request that was encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    # A request that was written before there were settings has none of them.
    *fields, place, backend, options, settings = strict_json.decode(content, "request", format=FORMAT).fields(
        *codec.GRAPH_FIELDS, "place", "backend", "options", optional={"settings": []}
    )
    graph = codec.decode_graph(*fields)
    layouts = decode_layouts(place)
    if len(layouts) != len(graph.inputs) or not all(map(_fits, graph.inputs, layouts)):
        raise ValueError("arguments that are not the graph's inputs")
    return Request(graph, layouts, backend.text(), _decode_options(options), _decode_options(settings))


def encode_layouts(layouts: ArgumentLayouts) -> list[Any]:
    """Returns the layouts of arguments as a field of a body."""
    return [layout and [list(layout[0]), list(layout[1])] for layout in layouts]


def decode_layouts(value: Value) -> ArgumentLayouts:
    """Reads the layouts of arguments.

    Raises:
        ValueError: if they are none.
    """
    return tuple(map(_decode_layout, value.items()))


def _decode_layout(value: Value) -> ArgumentLayout | None:
    if value.content is None:
        return None
    shape, strides = value.items(2)
    return shape.integers(), strides.integers()


def _fits(type_: ValueType, layout: ArgumentLayout | None) -> bool:
    """Whether an argument of this layout can be of this type."""
    if layout is None or not isinstance(type_, TensorType):
        return layout is None and not isinstance(type_, TensorType)
    shape, strides = layout
    if not len(shape) == len(strides) == len(type_.shape):
        return False
    return all(isinstance(size, Ref) or size == actual for size, actual in zip(type_.shape, shape, strict=True))


def _encode_options(options: Mapping[str, Option]) -> list[Any]:
    return [[name, _encode_option(value)] for name, value in sorted(options.items())]


def _decode_options(value: Value) -> dict[str, Option]:
    pairs = (item.items(2) for item in value.items())
    return {name.text(): _decode_option(option) for name, option in pairs}


def _encode_option(value: Any) -> Option | list[str]:
    if value is None or isinstance(value, bool | str):
        return value
    return [str(item) for item in value] if isinstance(value, tuple | list) else str(value)


def _decode_option(value: Value) -> Option:
    if value.content is None or isinstance(value.content, bool):
        return value.content
    return value.text() if isinstance(value.content, str) else tuple(item.text() for item in value.items())
