"""The values between a region and its compilation: template, binding, key; and a request to compile it, as data.

With a request, another process can compile the same graph with another version of the backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusioncache.ir import codec
from fusioncache.ir.graph import Graph, Ref, Region, TensorType, ValueType


@dataclass(frozen=True, slots=True)
class Ingredient:
    """A named part of a key's text with its own digest, so that a miss can be explained by the part that differs."""

    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Key:
    """The identity of a template or another result. Keys are equal if their texts are; a digest only finds candidates.

    Attributes:
        digest: SHA-256 of ``text``, in hexadecimal.
        text: the ingredients, each with its name and length: see ``ir/keys.py``.
        ingredients: the parts of ``text`` in order.
    """

    digest: str = field(compare=False, hash=True)
    text: str = field(hash=False)
    ingredients: tuple[Ingredient, ...] = field(compare=False)

    @property
    def texts(self) -> dict[str, str]:
        """The text of each ingredient by its name."""
        return {part.name: part.text for part in self.ingredients}


@dataclass(frozen=True, slots=True)
class Template:
    """A region without accidental differences.

    Attributes:
        graph: in canonical order. A residual chain is one op ``residual`` whose terms are not in the graph: their
            number is the template's parameter.
        key: made of the canonical text.
        name: a Python identifier made of its operations and its digest.
    """

    graph: Graph
    key: Key
    name: str


@dataclass(frozen=True, slots=True)
class Binding:
    """The mapping of a region's values to the slots of its template.

    Attributes:
        slots: for each input of the template, the position of the region's input.
        terms: for each residual chain, the positions of its terms among the region's inputs, left to right.
        outputs: for each output of the region, the position of the template's output.
    """

    slots: tuple[int, ...]
    terms: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]

    @property
    def arities(self) -> tuple[int, ...]:
        """The number of terms of each residual chain."""
        return tuple(len(chain) for chain in self.terms)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The region's inputs in the order in which the compiled template takes them."""
        return self.slots + tuple(position for chain in self.terms for position in chain)


@dataclass(frozen=True, slots=True)
class Instance:
    """A region in its original order, with the mapping between its values and its template's.

    Attributes:
        region: as Thunder made it, without the inputs that it does not use.
        inputs: for each input of the region, the position of the compiled template's argument.
        outputs: for each output of the template, the position of the region's output.
        plain: the same region with the layouts of plain Thunder, as operations ``layout.*``; None if the region's
            operations produce these layouts. Compiled code does not depend on it.
    """

    region: Region
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    plain: Region | None = None

    @property
    def compiled(self) -> Instance:
        """The same instance without ``plain``, on which compiled code does not depend."""
        return Instance(self.region, self.inputs, self.outputs)

    def validate(self) -> None:
        """Checks that the positions are those of the region's inputs and outputs, and that the plain region matches.

        Raises:
            ValueError: if not.
        """
        if sorted(self.inputs) != list(range(len(self.region.inputs))):
            raise ValueError("arguments that are not the region's inputs")
        if not all(position < len(self.region.outputs) for position in self.outputs):
            raise ValueError("a result that the region does not have")
        outputs = len(self.region.outputs)
        if self.plain and (self.plain.inputs, len(self.plain.outputs)) != (self.region.inputs, outputs):
            raise ValueError("a plain region with other inputs or outputs")


FORMAT = 2
"""The version of the format of stored regions and requests."""

ArgumentLayout = tuple[Sequence[int], Sequence[int]]
"""Shape and strides of a tensor, in elements."""

ArgumentLayouts = tuple[ArgumentLayout | None, ...]
"""The layout of each argument; None for one that is not a tensor."""


def layouts_of(args: Sequence[Any]) -> ArgumentLayouts:
    """Returns the layout of each argument; None for one that is not a tensor."""
    return tuple((arg.shape, arg.stride()) if hasattr(arg, "stride") else None for arg in args)


def count_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the number of elements in memory from the first to the last one of a tensor, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


Option = None | bool | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to compile a graph.

    Attributes:
        graph: in canonical order, without parameters.
        layouts: of the arguments.
        backend: the name of the backend that should compile it.
        options: the options of that backend, by name.
        settings: those settings of the compiling process that another process can apply, by name.
    """

    graph: Graph
    layouts: ArgumentLayouts
    backend: str
    options: Mapping[str, Option]
    settings: Mapping[str, Option] = field(default_factory=dict)

    def validate(self) -> None:
        """Checks that arguments of these layouts can be the graph's inputs.

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
    """Returns the part of an instance that artifacts depend on, as JSON. Equal instances have equal bytes."""
    return codec.encode(instance.compiled, format=FORMAT)


def decode_region(content: bytes | str) -> Instance:
    """Returns the instance that was encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    return codec.decode(Instance, content, "region", format=FORMAT)


def _fits(type_: ValueType, layout: ArgumentLayout | None) -> bool:
    """True if an argument of this layout can be of this type."""
    if layout is None or not isinstance(type_, TensorType):
        return layout is None and not isinstance(type_, TensorType)
    shape, strides = layout
    if not len(shape) == len(strides) == len(type_.shape):
        return False
    return all(isinstance(size, Ref) or size == actual for size, actual in zip(type_.shape, shape, strict=True))
