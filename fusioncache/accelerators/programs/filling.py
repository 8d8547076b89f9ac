"""From a general program to one at other sizes: its texts, their code, and what its templates are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType

from fusioncache.accelerators.programs.build import CompiledProgram
from fusioncache.accelerators.programs.general import TEMPLATE, GeneralProgram, Numbers
from fusioncache.accelerators.programs.general_prologue import GeneralPrologue
from fusioncache.accelerators.programs.general_templates import GeneralTemplates
from fusioncache.accelerators.programs.general_text import GeneralText, Words
from fusioncache.accelerators.programs.text import (
    CudaGraphReference,
    ProgramText,
    Reference,
    TemplateReference,
    TraceText,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a template is in this process.

    Attributes:
        name: of its calls.
        digest: of its key.
    """

    name: str
    digest: str


type Identify = Callable[[Mapping[str, TemplateReference]], Mapping[str, Identity]]
"""Tells what templates are in this process, whatever their digests say."""


@dataclass(frozen=True, slots=True)
class FilledProgram:
    """A program that was filled in.

    Attributes:
        text: its traces.
        compiled: what Python would make of it.
        digests: of its templates, in the order in which they are called first.
    """

    text: ProgramText
    compiled: CompiledProgram
    digests: tuple[str, ...]


class ProgramForm:
    """What is the same in a program at all sizes, and the places for what is not.

    Args:
        general: the program.

    Raises:
        Declined: if a number is where none can be filled in.
    """

    __slots__ = ("_general", "_prologue", "_templates", "_texts")

    def __init__(self, general: GeneralProgram):
        self._general = general
        self._texts = tuple(GeneralText.cut(trace, general) for trace in general.places.texts())
        self._prologue = GeneralPrologue(self._texts[0])
        self._templates = GeneralTemplates(general.places.templates(), general.values)

    def fill(self, numbers: Numbers, identify: Identify) -> FilledProgram:
        """Returns the program at other sizes.

        Args:
            numbers: that sizes are made of, by position.
            identify: tells what its templates are.

        Raises:
            Declined: if a number is not known.
        """
        values, places = self._general.evaluate(numbers), self._general.places
        templates = self._templates.fill(values)
        identities = identify(templates)
        known = {name: replace(each, digest=identities[name].digest) for name, each in templates.items()}
        words = Words(values, {name: each.name for name, each in identities.items()})
        filling = _Filling(known, words, words.list_all(), iter(self._texts), [])
        text = places.map_traces(filling.fill)
        digests = tuple(identities[f"{TEMPLATE}{number}"].digest for number in range(len(identities)))
        compiled = CompiledProgram(tuple(filling.codes), lambda prologue: self._prologue.rewrite(prologue, words))
        return FilledProgram(text, compiled, digests)


@dataclass(frozen=True, slots=True)
class _Filling:
    """Fills in the texts of one program, one after the other.

    Attributes:
        templates: by what stands for them.
        words: that are filled in.
        listed: all of them.
        waiting: the texts that are to come.
        codes: those of the texts so far.
    """

    templates: Mapping[str, TemplateReference]
    words: Words
    listed: list[str]
    waiting: Iterator[GeneralText]
    codes: list[CodeType]

    def fill(self, trace: TraceText) -> TraceText:
        """Returns a trace that is filled in. Parts of it that are captured are texts of their own, before its own."""
        names = self.words.names
        context = {names.get(name, name): self._fill_reference(name, each) for name, each in trace.context.items()}
        whole = replace(trace, context=dict(sorted(context.items())))
        filled, code = next(self.waiting).fill(whole, self.words, self.listed)
        self.codes.append(code)
        return filled

    def _fill_reference(self, name: str, reference: Reference) -> Reference:
        match reference:
            case TemplateReference():
                return self.templates[name]
            case CudaGraphReference(trace):
                return replace(reference, trace=self.fill(trace))
        return reference
