"""The keys: the registry of ingredients, everything that a key may be made of; and the text of a key.

A key is made of everything that a result depends on. Four keys name compiled code:

- The *template key* names what several regions have in common: the graph, in which residual chains are parameters, and
  the backend's environment when a trace was rewritten.
- The *executable key* names what is compiled: a graph without parameters, and the backend's environment at the moment
  of the compilation.
- The *artifact key* names what outlives the process: an executable, and all else that its bytes depend on, such as the
  device, the layouts of the arguments, and, where it shows, the order of a region's operands.
- The *general key* is the artifact key of code for any sizes: sizes are variables in its graph.

One level up, the *program key* names what Thunder derives a program from. It has ingredients of its own.

Each function that writes a text stands by one that reads it. The graph's ingredients are written and read in
``template/text.py``. Nothing else takes these texts apart. A changed byte in what is written changes digests: raise
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
"""The layout of an argument that is no tensor."""

NamedValue = tuple[str, object]
"""One line of a list of values."""

_LAYOUT = re.compile(r"\(([\d, ]*)\) \(([\d, ]*)\)")
_DEFAULT = re.compile(r"(.*) \(default (.*?)\)", re.DOTALL)


def write_key(texts: Mapping[str, str]) -> str:
    """Returns the whole text of a key: each ingredient with its name and length.

    The length is why no text can pass for the beginning of the next ingredient.
    """
    return "".join(f"{name} {len(text)}\n{text}\n" for name, text in texts.items())


def read_key(text: str) -> dict[str, str]:
    """Returns the text of each ingredient by its name.

    Raises:
        ValueError: if it is no text of a key.
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
    """Returns a list of values as text: a line for each, with its name, which has no space, before it."""
    return "\n".join(write_lines(values))


def write_lines(values: Iterable[NamedValue]) -> Iterator[str]:
    """Yields the lines of a list of values. What has several lines itself is put on one, and is not read as it was."""
    for name, value in values:
        line = str(value).replace("\n", "\\n")
        yield f"{name} {line}"


def read_values(text: str) -> dict[str, str]:
    """Returns the value of each line by its name. A line of one word is a name without a value."""
    lines = (line.partition(" ") for line in text.split("\n"))
    return {name: value for name, _, value in lines} if text else {}


def write_changed(value: str, default: str) -> str:
    """Returns a value that is not the default, as the text of a value in a list."""
    return f"{value} (default {default})"


def read_changed(text: str) -> tuple[str, str] | None:
    """Returns value and default; None if the text says nothing of a default."""
    found = _DEFAULT.fullmatch(text)
    return (found[1], found[2]) if found else None


def write_layouts(layouts: ArgumentLayouts) -> str:
    """Returns the layouts of arguments as text: a line for each, with shape and strides, or ``NUMBER``."""
    return "\n".join(NUMBER if layout is None else f"{tuple(layout[0])} {tuple(layout[1])}" for layout in layouts)


def read_layouts(text: str) -> ArgumentLayouts:
    """Returns the layouts of arguments.

    Raises:
        ValueError: if the text says something else.
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
    """What is computed. It is in each key of compiled code."""
    ENVIRONMENT = auto()
    """What it is compiled with and for. It is in each key of compiled code."""
    ARTIFACT = auto()
    """What the bytes of compiled code depend on besides. It is in artifact keys and general keys."""
    PROGRAM = auto()
    """What Thunder derives a program from. It is in the keys of programs, which have no other level."""


class Comparison(Enum):
    """How the difference between two texts of an ingredient is explained. Those of the graph are read and paired."""

    VALUES = auto()
    """Each line is a name and a value, and the names whose values differ are named."""
    LAYOUTS = auto()
    """Each line is the layout of an input, and the inputs whose layouts differ are named."""
    TEXTS = auto()
    """Both texts are shown as they are."""


@dataclass(frozen=True, slots=True)
class IngredientKind:
    """What is known of all ingredients of one name.

    Attributes:
        name: in a key.
        level: which part of a key it belongs to.
        comparison: how a difference is explained.
        phrase: how a sentence names what differs. In a list of values, ``{}`` stands for the name.
        follows: an ingredient by name: where that one differs as well, this one is not mentioned.
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
    # The version of what nvFuser is told of a graph.
    IngredientKind("definition", Level.ARTIFACT),
    # Name and size of each GPU that kernels were scheduled for.
    IngredientKind("device", Level.ARTIFACT),
    # The version of the CUDA driver.
    IngredientKind("driver", Level.ARTIFACT),
    # Of code for any sizes: how the dimensions of each argument lie in memory.
    IngredientKind("general layout", Level.ARTIFACT, phrase="how arguments lie in memory", follows="inputs"),
    # The first line that the C++ compiler says of itself.
    IngredientKind("inductor compiler", Level.ARTIFACT),
    # The version of what is stored of TorchInductor's code.
    IngredientKind("inductor format", Level.ARTIFACT),
    # The operating system, the machine and the C library.
    IngredientKind("inductor platform", Level.ARTIFACT),
    # Everything that the processor can do.
    IngredientKind("inductor processor", Level.ARTIFACT),
    # The binary interface of Python.
    IngredientKind("inductor python", Level.ARTIFACT),
    # The very build of torch.
    IngredientKind("inductor torch", Level.ARTIFACT),
    # Shape and strides of each argument.
    IngredientKind("layout", Level.ARTIFACT, Comparison.LAYOUTS, follows="inputs"),
    # What code depends on of the machine, in the words of a backend without other ingredients.
    IngredientKind("machine", Level.ARTIFACT),
    # The options that the backend was made with.
    _values("options", "the option {}"),
    # The region in its own order, where the order of operands shows in the result's layout. Another layout is why there
    # is an order in one key and none in another one.
    IngredientKind("order", Level.ARTIFACT, phrase="the order of operands", follows="layout"),
    # The version of what is stored of nvFuser's launches.
    IngredientKind("recipe", Level.ARTIFACT),
    # What the compiler reads of torch's settings, its own, and the process's.
    _values("settings", "the setting {}"),
    # Of code for one size that was made of code for any sizes: which sizes that is for. A sum may have other bits.
    IngredientKind("sizes", Level.ARTIFACT, phrase="code for any sizes"),
    # The versions of the compiler, torch and Thunder.
    _values("versions", "the {} version"),
    # What the function is called with: values, and of tensors all but their numbers.
    _program("arguments", "`{}`"),
    # The code of each class that takes part.
    _program("classes", "the class `{}`"),
    # The version of what is stored of programs that differ in sizes alone. Only the key of a family has it.
    IngredientKind("family format", Level.PROGRAM),
    # What Thunder makes of each function, and what its modules hold.
    _program("function map", "Thunder's `{}`"),
    # The options of thunder.jit, its executors and its transforms with theirs.
    _program("jit options", "the option {}"),
    # What is traced: each attribute of each module, hooks, code, and all but the numbers.
    _program("model", "`{}`"),
    # The version of what is stored of a program and of its key.
    IngredientKind("program format", Level.PROGRAM),
    # The code that derives programs: versions, and digests of sources.
    _program("program versions", "{}"),
    # The version of what is stored of operations that Thunder supports. No key of a program has it.
    IngredientKind("splits format", Level.PROGRAM),
    # What torch and Thunder keep for the whole process: gradients, autocast, defaults.
    _program("state", "the state {}"),
    # Variables of the environment that Thunder reads.
    _program("variables", "the variable {}"),
)
"""In the order in which they stand in a key: those of the graph as here, then all others by their names.

Above each stands what it says.
"""

INGREDIENTS: Mapping[str, IngredientKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Every kind of ingredient by its name."""

GRAPH = tuple(kind.name for kind in _KINDS if kind.level is Level.GRAPH)
"""The names of the ingredients that say what is computed."""

MACHINE = frozenset(
    {kind.name for kind in _KINDS if kind.level in (Level.ENVIRONMENT, Level.ARTIFACT)}
    - {"options", "settings", "general layout", "layout", "order", "sizes"}
    | {"program format", "program versions"}
)
"""The names of the ingredients that say which machine and which versions something is for, and not which job."""

BACKEND, GENERAL_LAYOUT, LAYOUT, ORDER, SIZES = "backend", "general layout", "layout", "order", "sizes"
ANY_SIZES = "any"


def kind_of(name: str) -> IngredientKind:
    """Returns what is known of an ingredient; of one that some other version wrote, no more than its name."""
    return INGREDIENTS.get(name) or IngredientKind(name, Level.ARTIFACT)


def graph_digest(digests: Iterable[tuple[str, str]]) -> str:
    """Returns one digest of a key's graph ingredients, of which names and digests are given; empty if it has none."""
    parts = [pair for pair in digests if pair[0] in GRAPH]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if parts else ""
