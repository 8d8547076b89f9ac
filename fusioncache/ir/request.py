"""Requests to compile, as data: enough to ask again, in another process, a backend of another version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusioncache.ir import codec
from fusioncache.ir.graph import Graph
from fusioncache.ir.template import Instance
from fusioncache.ir.types import Ref, TensorType, ValueType

FORMAT = 2
"""The version of what is stored of a region and of a request."""

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

    def validate(self) -> None:
        """Does nothing if arguments of these layouts can be the graph's inputs.

        Raises:
            ValueError: if they cannot.
        """
        inputs, layouts = self.graph.inputs, self.layouts
        if len(layouts) != len(inputs) or not all(map(_fits, inputs, layouts)):
            raise ValueError("arguments that are not the graph's inputs")


def encode_request(request: Request) -> bytes:
    """Returns a request as JSON. Equal requests have equal bytes."""
    return codec.encode(request, format=FORMAT)


def decode_request(content: bytes | str) -> Request:
    """Returns the request that was encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    return codec.decode(Request, content, "request", format=FORMAT)


def encode_region(instance: Instance) -> bytes:
    """Returns what an artifact depends on of an instance, as JSON. Equal instances have equal bytes."""
    return codec.encode(instance.compiled, format=FORMAT)


def decode_region(content: bytes | str) -> Instance:
    """Returns the instance that was encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    return codec.decode(Instance, content, "region", format=FORMAT)


def _fits(type_: ValueType, layout: ArgumentLayout | None) -> bool:
    """Whether an argument of this layout can be of this type."""
    if layout is None or not isinstance(type_, TensorType):
        return layout is None and not isinstance(type_, TensorType)
    shape, strides = layout
    if not len(shape) == len(strides) == len(type_.shape):
        return False
    return all(isinstance(size, Ref) or size == actual for size, actual in zip(type_.shape, shape, strict=True))
