"""Keys: the registry of all ingredients that a key may contain, and the text of a key.

A key contains everything that a result depends on. Four keys name compiled code:

- The *template key* names what several regions share: the graph, in which residual chains are parameters, and the
  backend's environment when a trace was rewritten.
- The *executable key* names what is compiled: a graph without parameters, and the backend's environment at the moment
  of the compilation.
- The *artifact key* names what the store contains: an executable, and everything else that its bytes depend on, such
  as the device, the layouts of the arguments, and, where it affects results, the order of a region's operands.
- The *general key* is the artifact key of code for any sizes: sizes are variables in its graph.

One level up, the *program key* names what Thunder derives a program from. It has separate ingredients.

Each function that writes a text is next to the one that reads it. The graph's ingredients are written and read in
``template/text.py``. No other code parses these texts. A changed byte in a written text changes digests: raise
``FORMAT`` there with it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from fusioncache.ir.template import ArgumentLayouts

NOT_A_KEY = "no text of a key"
NUMBER = "number"
"""The layout of an argument that is not a tensor."""

NamedValue = tuple[str, object]
"""One line of a list of values."""

_LAYOUT = re.compile(r"\(([\d, ]*)\) \(([\d, ]*)\)")
_DEFAULT = re.compile(r"(.*) \(default (.*?)\)", re.DOTALL)


def write_key(texts: Mapping[str, str]) -> str:
    """Returns the text of a key: each ingredient with its name and length.

    Because of the length, no text can be mistaken for the beginning of the next ingredient.
    """
    return "".join(f"{name} {len(text)}\n{text}\n" for name, text in texts.items())


def read_key(text: str) -> dict[str, str]:
    """Returns the text of each ingredient by its name.

    Raises:
        ValueError: if it is not the text of a key.
    """
    texts: dict[str, str] = {}
    position = 0
    while position < len(text):
        head, found, _ = text[position:].partition("\n")
        name, _, length = head.rpartition(" ")
        if not (found and name and length.isdecimal()):
            raise ValueError(NOT_A_KEY)
        start = position + len(head) + 1
        position = start + int(length) + 1
        if position > len(text) or text[position - 1] != "\n" or name in texts:
            raise ValueError(NOT_A_KEY)
        texts[name] = text[start : position - 1]
    return texts


def write_values(values: Iterable[NamedValue]) -> str:
    """Returns a list of values as text: a line for each, with its name, which contains no space, and its value."""
    return "\n".join(write_lines(values))


def write_lines(values: Iterable[NamedValue]) -> Iterator[str]:
    """Yields the lines of a list of values. Newlines in a value are escaped, and reading does not restore them."""
    for name, value in values:
        line = str(value).replace("\n", "\\n")
        yield f"{name} {line}"


def read_values(text: str) -> dict[str, str]:
    """Returns the value of each line by its name. A line of one word is a name without a value."""
    lines = (line.partition(" ") for line in text.split("\n"))
    return {name: value for name, _, value in lines} if text else {}


def write_changed(value: str, default: str) -> str:
    """Returns the text of a value that is not the default, for a list of values."""
    return f"{value} (default {default})"


def read_changed(text: str) -> tuple[str, str] | None:
    """Returns value and default; None if the text contains no default."""
    found = _DEFAULT.fullmatch(text)
    return (found[1], found[2]) if found else None


def write_layouts(layouts: ArgumentLayouts) -> str:
    """Returns the layouts of arguments as text: a line for each, with shape and strides, or ``NUMBER``."""
    return "\n".join(NUMBER if layout is None else f"{tuple(layout[0])} {tuple(layout[1])}" for layout in layouts)


def read_layouts(text: str) -> ArgumentLayouts:
    """Returns the layouts of arguments.

    Raises:
        ValueError: if the text does not contain layouts.
    """
    return tuple(map(_read_layout, text.split("\n"))) if text else ()


def _read_layout(line: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if line == NUMBER:
        return None
    found = _LAYOUT.fullmatch(line)
    if found is None:
        raise ValueError(f"no layout: {line!r}")
    shape, strides = (tuple(int(size) for size in sizes.split(",") if size.strip()) for sizes in found.groups())
    return shape, strides


class Level(Enum):
    """Which part of a key an ingredient belongs to."""

    GRAPH = auto()
    """What is computed. Part of every key of compiled code."""
    ENVIRONMENT = auto()
    """What it is compiled with and for. Part of every key of compiled code."""
    ARTIFACT = auto()
    """Everything else that the bytes of compiled code depend on. Part of artifact keys and general keys."""
    PROGRAM = auto()
    """What Thunder derives a program from. Part of program keys, which have no other level."""


class Comparison(Enum):
    """How the difference between two texts of an ingredient is explained. Those of the graph are parsed and paired."""

    VALUES = auto()
    """Each line is a name and a value, and the names whose values differ are listed."""
    LAYOUTS = auto()
    """Each line is the layout of an input, and the inputs whose layouts differ are listed."""
    TEXTS = auto()
    """Both texts are shown as they are."""


@dataclass(frozen=True, slots=True)
class IngredientKind:
    """The properties of all ingredients of one name.

    Attributes:
        name: in a key.
        level: which part of a key it belongs to.
        comparison: how a difference is explained.
        phrase: how a sentence names the difference. In a list of values, ``{}`` is replaced by the name.
        follows: the name of another ingredient. If that one differs as well, this one is not mentioned.
    """

    name: str
    level: Level
    comparison: Comparison = Comparison.TEXTS
    phrase: str = ""
    follows: str | None = None

    @property
    def subject(self) -> str:
        """How a sentence names the ingredient as a whole."""
        return self.phrase if self.phrase and "{}" not in self.phrase else f"the {self.name}"


def _values(name: str, phrase: str) -> IngredientKind:
    return IngredientKind(name, Level.ENVIRONMENT, Comparison.VALUES, phrase)


def _program(name: str, phrase: str) -> IngredientKind:
    return IngredientKind(name, Level.PROGRAM, Comparison.VALUES, phrase)


_KINDS = (
    # The version of the canonical text.
    IngredientKind("format", Level.GRAPH),
    # The type of each input, and the symbolic sizes.
    IngredientKind("inputs", Level.GRAPH),
    # Each operation with its operands and the types of its results, in canonical order.
    IngredientKind("ops", Level.GRAPH),
    # The numbers that take part in the arithmetic, in the order in which operations use them.
    IngredientKind("constants", Level.GRAPH),
    # All other literals: dimensions, dtypes, shapes, devices, flags.
    IngredientKind("attributes", Level.GRAPH),
    # Which values leave the graph.
    IngredientKind("outputs", Level.GRAPH),
    # The processor or GPU that the backend generates code for.
    IngredientKind("architecture", Level.ENVIRONMENT),
    # The compiler; all else in the environment follows from it.
    IngredientKind("backend", Level.ENVIRONMENT),
    # The version of the definitions that are written for nvFuser.
    IngredientKind("definition", Level.ARTIFACT),
    # Name and size of each GPU that kernels were scheduled for.
    IngredientKind("device", Level.ARTIFACT),
    # The version of the CUDA driver.
    IngredientKind("driver", Level.ARTIFACT),
    # For code for any sizes: how the dimensions of each argument lie in memory.
    IngredientKind("general layout", Level.ARTIFACT, phrase="how arguments lie in memory", follows="inputs"),
    # The first line of the C++ compiler's ``--version``.
    IngredientKind("inductor compiler", Level.ARTIFACT),
    # The format of stored TorchInductor code.
    IngredientKind("inductor format", Level.ARTIFACT),
    # The operating system, the machine and the C library.
    IngredientKind("inductor platform", Level.ARTIFACT),
    # The features of the processor.
    IngredientKind("inductor processor", Level.ARTIFACT),
    # The binary interface of Python.
    IngredientKind("inductor python", Level.ARTIFACT),
    # The exact build of torch.
    IngredientKind("inductor torch", Level.ARTIFACT),
    # Shape and strides of each argument.
    IngredientKind("layout", Level.ARTIFACT, Comparison.LAYOUTS, follows="inputs"),
    # The machine that code depends on, for a backend without more specific ingredients.
    IngredientKind("machine", Level.ARTIFACT),
    # The options that the backend was made with.
    _values("options", "the option {}"),
    # The region in its original order, if the order of operands affects the result's layout. If only one of two keys
    # contains it, their layouts differ.
    IngredientKind("order", Level.ARTIFACT, phrase="the order of operands", follows="layout"),
    # The format of stored nvFuser launches.
    IngredientKind("recipe", Level.ARTIFACT),
    # The settings of torch, of the compiler and of the process that the compiler reads.
    _values("settings", "the setting {}"),
    # ``ANY_SIZES`` if code for one size was made from code for any, else absent. Sums may have other bits.
    IngredientKind("sizes", Level.ARTIFACT, phrase="code for any sizes"),
    # The versions of the compiler, torch and Thunder.
    _values("versions", "the {} version"),
    # The arguments of the call: values, and for tensors all but their elements.
    _program("arguments", "`{}`"),
    # The code of each class that takes part.
    _program("classes", "the class `{}`"),
    # The format of stored families. Only the key of a family contains it.
    IngredientKind("family format", Level.PROGRAM),
    # Thunder's replacement for each function, and the contents of its modules.
    _program("function map", "Thunder's `{}`"),
    # The options of thunder.jit, and its executors and transforms with their options.
    _program("jit options", "the option {}"),
    # The traced model: each attribute of each module, hooks, code; everything but the elements of tensors.
    _program("model", "`{}`"),
    # The format of a stored program and of its key.
    IngredientKind("program format", Level.PROGRAM),
    # The code that derives programs: versions, and digests of sources.
    _program("program versions", "{}"),
    # The format of the stored list of operations that Thunder supports. No program key contains it.
    IngredientKind("splits format", Level.PROGRAM),
    # Process-wide state of torch and Thunder: gradients, autocast, defaults.
    _program("state", "the state {}"),
    # Environment variables that Thunder reads.
    _program("variables", "the variable {}"),
)
"""In the order in which they appear in a key: those of the graph as here, then all others sorted by name.

The comment above each one says what it contains."""

INGREDIENTS: Mapping[str, IngredientKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Every kind of ingredient by its name."""

GRAPH = tuple(kind.name for kind in _KINDS if kind.level is Level.GRAPH)
"""The names of the ingredients that define what is computed."""

MACHINE = frozenset(
    {kind.name for kind in _KINDS if kind.level in (Level.ENVIRONMENT, Level.ARTIFACT)}
    - {"options", "settings", "general layout", "layout", "order", "sizes"}
    | {"program format", "program versions"}
)
"""The names of the ingredients that define for which machine and versions something is, and not for which job."""

BACKEND, GENERAL_LAYOUT, LAYOUT, ORDER, SIZES = "backend", "general layout", "layout", "order", "sizes"
ANY_SIZES = "any"


def kind_of(name: str) -> IngredientKind:
    """Returns the kind of an ingredient. For a name of another version it contains only the name."""
    return INGREDIENTS.get(name) or IngredientKind(name, Level.ARTIFACT)


def graph_digest(digests: Iterable[tuple[str, str]]) -> str:
    """Returns one digest of a key's graph ingredients, given as names and digests; an empty text if there are none."""
    parts = [pair for pair in digests if pair[0] in GRAPH]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if parts else ""
