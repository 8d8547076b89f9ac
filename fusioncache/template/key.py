"""What is in a key: one function for each ingredient."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fusioncache.ir import Const, Graph, Ingredient, Key
from fusioncache.template.text import Inline, input_lines, op_lines, output_lines

FORMAT = "1"
"""The format of the canonical text. Raise it with every change to what a text says or leaves out."""


def make_key(graph: Graph, environment: Mapping[str, str]) -> Key:
    """The key of a canonical graph.

    Args:
        graph: in canonical order.
        environment: what else a compiled template depends on, by ingredient name, such as ``options``.
    """
    literals = _Listed()
    parts = {
        "format": FORMAT,
        "inputs": inputs_text(graph),
        "ops": ops_text(graph, literals),
        "constants": "\n".join(literals.constants),
        "attributes": "\n".join(literals.attributes),
        "outputs": outputs_text(graph),
        **{name: environment[name] for name in sorted(environment)},
    }
    ingredients = tuple(Ingredient(name, text, _digest(text)) for name, text in parts.items())
    text = "".join(framed(part.name, part.text) for part in ingredients)
    return Key(_digest(text), text, ingredients)


def framed(name: str, text: str) -> str:
    """A part with its name and length, so that no text can pass for the beginning of the next part."""
    return f"{name} {len(text)}\n{text}\n"


def inputs_text(graph: Graph) -> str:
    """The type of each input: dtype, shape or symbolic sizes, device type."""
    return "\n".join(input_lines(graph))


def ops_text(graph: Graph, literals: Inline) -> str:
    """Each op with its operands and the types of its results. Literals stand in ingredients of their own."""
    return "\n".join(op_lines(graph, literals))


def outputs_text(graph: Graph) -> str:
    """Which values leave the template."""
    return "\n".join(output_lines(graph))


class _Listed(Inline):
    """Writes each literal in a list of its kind, and a mark where it stood."""

    def __init__(self) -> None:
        self.constants: list[str] = []
        self.attributes: list[str] = []

    def constant(self, const: Const) -> str:
        self.constants.append(f"{const.kind} {const.text}")
        return f"constant{len(self.constants) - 1}"

    def attribute(self, const: Const) -> str:
        self.attributes.append(f"{const.kind} {const.text!r}")
        return f"attribute{len(self.attributes) - 1}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
