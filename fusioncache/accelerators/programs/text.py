"""A program as data: the Python source of its four traces, as Thunder prints it, and references for the names in it.

It is stored as JSON, which ``ir/codec.py`` writes and reads by the types here::

    program   = { format, prologue, computation, backward, epilogue: trace; returns_none_for_gradients: truth value }
    trace     = { name, source: text; context: { name: reference } }      backward may be null
    reference = { kind, and the fields of its class }

A source is Python that will be executed. So a user who can write to a store can run code in processes that read it, as
with the code of templates. The checks here guard against mistakes, not against such users. References are plain data
without objects or code: ``build.py`` resolves them.

A read is a value besides the key that the derivation of a program used, with its place: a global or a builtin of a
module, an attribute of a module, a function whose code ran, a class, an environment variable, or a query of torch's
state. Its text comes from a ``Describer``: two texts are equal only if no trace could distinguish their values. The
text of an environment variable is a digest.

Reads are stored in the order in which they were described, which is the order in which they are compared::

    reads     = { format, reads: [ { kind, name, text } ] }
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from fusioncache.accelerators.programs import introspection
from fusioncache.accelerators.programs.introspection import ABSENT
from fusioncache.ir import Graph, Instance, codec
from fusioncache.ir.codec import is_text
from fusioncache.ir.template import ArgumentLayouts
from fusioncache.template.plan import Arities, Plan

if TYPE_CHECKING:  # the CLI reads programs without torch
    from fusioncache.accelerators.programs.describe import Describer

FORMAT = 8

REVIEWED = frozenset(
    {"builtins", "cmath", "fusioncache", "math", "numbers", "nvfuser_direct", "operator", "thunder", "torch"}
)
"""The packages whose modules a stored program may import, and whose functions it may call."""

Name = Annotated[str, re.compile(r"[^\W\d]\w*")]
ModuleName = Annotated[str, re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")]
Option = str | bool | int | float | tuple[str, ...] | None
"""The value of a backend's option."""

_IMPORT = re.compile(r"import ([\w.]+)(?: as \w+)?|from ([\w.]+) import \w+")
_DECORATORS = frozenset({"@torch.no_grad()", "@no_autocast"})


def is_reviewed(module: str) -> bool:
    """True if a module belongs to a package that stored programs may use."""
    return module.partition(".")[0] in REVIEWED


def check_source(name: str, source: str) -> None:
    """Checks that a source is one function with this name, and imports reviewed packages only.

    Raises:
        ValueError: if it is anything else, with the reason.
    """
    if not is_text(source):
        raise ValueError("has a text that is not Unicode")
    head, found, body = f"\n{source}".partition(f"\ndef {name}(")
    if not found:
        raise ValueError(f"has no function {name}")
    for line in head.split("\n"):
        _check_head(line)
    signature, _, statements = body.partition("\n")
    inside = all(line.startswith("  ") or not line for line in statements.split("\n"))
    if not signature.endswith("):") or not statements or not inside:
        raise ValueError(f"has something else than the function {name}")


def _check_head(line: str) -> None:
    imported = _IMPORT.fullmatch(line)
    if imported is None:
        if line and not line.startswith("#") and line not in _DECORATORS:
            raise ValueError(f"has the line {line!r} before its function")
    elif not is_reviewed(imported[1] or imported[2]):
        raise ValueError(f"imports {imported[1] or imported[2]}, which stored programs may not use")


@dataclass(frozen=True, slots=True)
class ModuleReference:
    """A module.

    Attributes:
        module: its name.
    """

    TAG: ClassVar[str] = "module"

    module: Annotated[ModuleName, is_reviewed]


@dataclass(frozen=True, slots=True)
class NamedReference:
    """A function, a class, a member of an enumeration or a constant of a module.

    Attributes:
        module: that contains it.
        name: its qualified name there.
        text: its description. The object with this name in another process must have the same one. If it is empty, the
            versions of the packages in the key suffice.
    """

    TAG: ClassVar[str] = "name"

    module: ModuleName
    name: ModuleName
    text: str = ""


@dataclass(frozen=True, slots=True)
class SymbolReference:
    """The function with which one of Thunder's executors implements an operation.

    Attributes:
        executor: the executor's name.
        symbol: the operation's name among those of the executor.
        text: the function's description. The implementation in another process must have the same one.
    """

    TAG: ClassVar[str] = "symbol"

    executor: str
    symbol: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """Regions of a template with the same arities.

    Attributes:
        arities: the number of terms of each residual chain.
        plan: how the chains are summed.
        executor: the name of the Thunder executor that made the regions.
        instance: one of the regions.
        layouts: the predicted layouts of the arguments, one tuple for each variant. Their executables may be missing.
    """

    arities: Arities
    plan: Plan
    executor: str
    instance: Instance
    layouts: tuple[ArgumentLayouts, ...] = ()


@dataclass(frozen=True, slots=True)
class TemplateReference:
    """A template that a trace calls.

    Attributes:
        backend: the name of the backend that compiles it.
        options: of the backend, as pairs of name and value.
        graph: of the template, in canonical order.
        digest: of the template's key. The template that another process makes of the graph must have the same.
        uses: the regions for which the template is called, by arities.
    """

    TAG: ClassVar[str] = "template"

    backend: str
    options: tuple[tuple[str, Option], ...]
    graph: Graph
    digest: Annotated[str, re.compile("[0-9a-f]{64}")]
    uses: tuple[TemplateUse, ...]


@dataclass(frozen=True, slots=True)
class TraceText:
    """The text of a trace, or of a part of one.

    Attributes:
        name: of its function.
        source: Python as Thunder prints it.
        context: references for the names in it, except imported names and those that every prologue has.
    """

    name: Name
    source: str
    context: Mapping[Name, Reference] = field(default_factory=dict)

    def validate(self) -> None:
        """Checks that the source is one function, and imports reviewed packages only.

        Raises:
            ValueError: if it is anything else.
        """
        check_source(self.name, self.source)


@dataclass(frozen=True, slots=True)
class GroupReference:
    """A process group of the model that a program is for.

    Attributes:
        number: its position among those of the model.
        text: its description. The group at this position in another process must have the same one.
    """

    TAG: ClassVar[str] = "group"

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class AgreementReference:
    """The agreement of ranks on the collectives of a trace, exchanged before the first run.

    Attributes:
        stretches: for each process group its collectives, as a line of text each.
    """

    TAG: ClassVar[str] = "agreement"

    stretches: tuple[tuple[GroupReference, tuple[str, ...]], ...]


Reference = ModuleReference | NamedReference | SymbolReference | TemplateReference | GroupReference | AgreementReference


@dataclass(frozen=True, slots=True)
class ProgramText:
    """What Thunder makes of a model for one kind of input.

    Attributes:
        prologue: checks that the inputs are of this kind (guards), and unpacks tensors from them and the model.
        computation: the forward pass.
        backward: None if no gradient is computed.
        epilogue: writes the model's changes to its own state back.
        returns_none_for_gradients: whether backward returns None in place of gradients, which go another way, as in
            FSDP without synchronization.
    """

    prologue: TraceText
    computation: TraceText
    backward: TraceText | None
    epilogue: TraceText
    returns_none_for_gradients: bool = False

    def traces(self) -> Iterator[TraceText]:
        """Yields the traces in the order in which they run, without a missing backward."""
        yield from filter(None, (self.prologue, self.computation, self.epilogue, self.backward))

    def map_traces(self, new: Callable[[TraceText], TraceText]) -> ProgramText:
        """Returns a program with each trace replaced by ``new(trace)``: prologue, computation, epilogue, backward."""
        prologue, computation, epilogue = map(new, (self.prologue, self.computation, self.epilogue))
        backward = None if self.backward is None else new(self.backward)
        return ProgramText(prologue, computation, backward, epilogue, self.returns_none_for_gradients)

    def templates(self) -> dict[str, TemplateReference]:
        """Returns the templates that the traces call, by the names of the calls."""
        named = (item for trace in self.traces() for item in trace.context.items())
        return {name: reference for name, reference in named if isinstance(reference, TemplateReference)}


def encode(program: ProgramText) -> bytes:
    """Returns a program as bytes. Equal programs have equal bytes."""
    return codec.encode(program, format=FORMAT)


def decode(content: bytes) -> ProgramText:
    """Returns the program that was encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    return codec.decode(ProgramText, content, "program", format=FORMAT)


READS_FORMAT = 3

KINDS = ("variable", "import", "query", "builtin", "global", "attribute", "function", "class")
"""All kinds of reads, in the order in which they are recorded: those likely to differ and quick to compare first."""


@dataclass(frozen=True, slots=True)
class Read:
    """An outside value that a program depends on, recorded while it was derived.

    Attributes:
        kind: one of ``KINDS``.
        name: module and name, separated by a dot, or by a colon for functions and classes; the name of an environment
            variable or of a module; or a query as a Python call.
        text: the description of the value.
    """

    kind: Annotated[str, re.compile("|".join(KINDS))]
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class _Reads:
    """All reads of one program."""

    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class ReadDifference:
    """A read that gives another result now.

    Attributes:
        read: from when the program was derived.
        now: the description of the current value, or None.
    """

    read: Read
    now: str | None


def encode_reads(reads: Iterable[Read]) -> bytes:
    """Returns reads as bytes. Equal reads have equal bytes."""
    return codec.encode(_Reads(tuple(reads)), format=READS_FORMAT)


def decode_reads(content: bytes) -> tuple[Read, ...]:
    """Returns the reads that ``encode_reads`` encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    return codec.decode(_Reads, content, "reads", format=READS_FORMAT).reads


def find_difference(reads: Iterable[Read], describer: Describer) -> ReadDifference | None:
    """Returns the first read that gives another result now, or None.

    It imports nothing, and calls nothing that it finds except the queries. A module that has not been imported is a
    difference: the effects of importing it are unknown.

    Args:
        reads: of the program, in the order in which they were recorded.
        describer: has described the program's key, and nothing else.
    """
    for read in reads:
        now = find_text(read.kind, read.name, describer)
        if now != read.text:
            return ReadDifference(read, now)
    return None


def find_text(kind: str, name: str, describer: Describer) -> str | None:
    """Returns the description of what a read finds now; None if there is nothing, or it cannot be described."""
    try:
        if kind == "variable":
            return introspection.describe_variable(name)
        if kind == "import":
            return describer.describe(sys.modules[name])
        if kind == "query":
            return describer.describe(introspection.answer(name))
        if kind in ("function", "class"):
            module, _, qualified_name = name.rpartition(":")
            return describe_found(introspection.find_qualified(module, qualified_name), describer)
        module, _, last = name.rpartition(".")
        find = introspection.find_attribute if kind == "attribute" else introspection.find_global
        return describe_found(find(module, last), describer, None if kind == "builtin" else last)
    except Exception:  # any error of foreign code instead of an answer is a difference
        return None


def describe_found(value: object, describer: Describer, name: str | None = None) -> str:
    """Returns the description of a value that was read under a name, or "nothing" for ``ABSENT``.

    Raises:
        Exception: any error of the describer.
    """
    if value is ABSENT:
        return "nothing"
    if introspection.is_environment(value):
        # The variables, which are in ``_data``, are read one by one.
        parts = {name: part for name, part in vars(value).items() if name != "_data"}
        return f"the environment, found by {describer.describe(parts)}"
    return describer.describe(value, name)
