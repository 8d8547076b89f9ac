"""A template, the binding that leads from a region to it, and the key that names it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusioncache.ir.graph import Graph, Region


@dataclass(frozen=True, slots=True)
class Ingredient:
    """A named part of a key's text with its own digest, so that a miss can be explained by the part that differs."""

    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Key:
    """Names a template. Two keys are equal when their texts are equal; the digest only finds the candidate.

    Attributes:
        digest: SHA-256 of ``text``, in hexadecimal.
        text: the ingredients, each with its name and length: see ``ir/key_text.py``.
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
    """A region with everything accidental taken out.

    Attributes:
        graph: in canonical order. A residual chain is one op ``residual`` whose terms are not in the graph: their
            number is the template's parameter.
        key: the digest of the canonical text.
        name: a Python identifier that says what the template computes and which one it is.
    """

    graph: Graph
    key: Key
    name: str


@dataclass(frozen=True, slots=True)
class Binding:
    """Which of a region's values fills which slot of its template.

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
    """A region in its own order, callable in the terms of its template.

    Attributes:
        region: as Thunder made it, without the inputs that it does not use.
        inputs: for each input of the region, the position of the compiled template's argument.
        outputs: for each output of the template, the position of the region's output.
        plain: the same region as plain Thunder lays out its values, with operations ``layout.*``; None if it lays them
            out as the region's own operations do. Nothing that is compiled depends on it.
    """

    region: Region
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    plain: Region | None = None

    @property
    def compiled(self) -> Instance:
        """The same without what nothing that is compiled depends on."""
        return Instance(self.region, self.inputs, self.outputs)

    def validate(self) -> None:
        """Does nothing if the positions are those of the region's inputs and outputs, and the plain region has as many.

        Raises:
            ValueError: if they are not.
        """
        if sorted(self.inputs) != list(range(len(self.region.inputs))):
            raise ValueError("arguments that are not the region's inputs")
        if not all(position < len(self.region.outputs) for position in self.outputs):
            raise ValueError("a result that the region does not have")
        outputs = len(self.region.outputs)
        if self.plain and (self.plain.inputs, len(self.plain.outputs)) != (self.region.inputs, outputs):
            raise ValueError("a plain region with other inputs or outputs")
