"""What was asked of a backend, as data: enough to ask it again, in another process, of another version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusioncache.ir import codec
from fusioncache.ir.graph import Graph
from fusioncache.ir.types import Ref, TensorType, ValueType

FORMAT = 1

ArgumentLayouts = tuple[tuple[Sequence[int], Sequence[int]] | None, ...]
"""Shape and strides of each tensor among the arguments."""

Option = None | bool | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What was to be compiled.

    Attributes:
        graph: in canonical order, without parameters.
        place: where the arguments lay.
        backend: that was to compile it.
        options: by name, with which that backend was made.
        settings: of the compiling process, by name, that another one can make as well.
    """

    graph: Graph
    place: ArgumentLayouts
    backend: str
    options: Mapping[str, Option]
    settings: Mapping[str, Option] = field(default_factory=dict)


def encoded(request: Request) -> bytes:
    """A request as JSON. Equal ones have equal bytes."""
    body = {
        "format": FORMAT,
        **codec.graph_out(request.graph),
        "place": [None if at is None else [list(at[0]), list(at[1])] for at in request.place],
        "backend": request.backend,
        "options": _options_out(request.options),
        "settings": _options_out(request.settings),
    }
    return codec.written(body)


def decoded(content: bytes) -> Request:
    """The request that was encoded.

    Raises:
        ValueError: if it is none, or of another format.
    """
    return codec.read(content, FORMAT, _request)


def _request(body: Any) -> Request:
    graph = codec.graph_in(body)
    place = tuple(None if at is None else _at(*at) for at in body["place"])
    if len(place) != len(graph.inputs) or not all(map(_fits, graph.inputs, place)):
        raise ValueError("arguments that are not the graph's inputs")
    # What was asked for before there were settings has none of them.
    options, settings = _options_in(body["options"]), _options_in(body.get("settings", []))
    return Request(graph, place, codec.text(body["backend"]), options, settings)


def _at(shape: Any, strides: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return codec.numbers(shape), codec.numbers(strides)


def _fits(type_: ValueType, at: tuple[Sequence[int], Sequence[int]] | None) -> bool:
    """Whether an argument that lies there can be of this type."""
    if at is None or not isinstance(type_, TensorType):
        return at is None and not isinstance(type_, TensorType)
    shape, strides = at
    if not len(shape) == len(strides) == len(type_.shape):
        return False
    return all(isinstance(size, Ref) or size == actual for size, actual in zip(type_.shape, shape, strict=True))


def _options_out(options: Mapping[str, Option]) -> list[Any]:
    return [[name, _option_out(value)] for name, value in sorted(options.items())]


def _options_in(items: Any) -> dict[str, Option]:
    return {codec.text(name): _option_in(value) for name, value in items}


def _option_out(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    return [str(item) for item in value] if isinstance(value, tuple | list) else str(value)


def _option_in(item: Any) -> Option:
    if item is None or isinstance(item, bool | str):
        return item
    return tuple(map(codec.text, item))
