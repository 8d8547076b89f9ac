"""Programs that differ only in numbers, as one with a place for each: from those at known sizes to one at others.

A program is data, and so is each number in it: in the text of a trace, in the shapes and the literals of a template.
What a number is made of is not read off its values alone: the expressions are given of which each number that is no
constant has to be one, and those that have the right value in each program remain. Where these do not agree at other
sizes, there is no program for these.

In a text a *mark* stands for each number that varies: a number that no text has. Python compiles the text with marks
once, and the code at other sizes is that code with other constants and names. Of templates only what has a variable in
it is made at other sizes: that takes less time, and leaves less to Python's collector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from math import isfinite
from operator import itemgetter
from types import CodeType, MappingProxyType
from typing import Any

from fusioncache.accelerators.programs import build
from fusioncache.accelerators.programs.build import FUNCTION_OBJECT, CompiledProgram
from fusioncache.accelerators.programs.text import (
    ProgramText,
    Reference,
    TemplateReference,
    TemplateUse,
    TraceText,
)
from fusioncache.accelerators.sizes.sizes import Expression, Float, evaluate, gives_float, write_constant
from fusioncache.accelerators.steps import prologue as rewriting
from fusioncache.ir import Const, Declined, Graph, Instance, Op, Scope, TensorType
from fusioncache.ir.template import ArgumentLayouts
from fusioncache.template.plan import inline
from fusioncache.template.strides import lay_out_alike

type Numbers = Mapping[int, int]
"""The values of the numbers that sizes are made of, by their positions."""
type Shapes = Mapping[str, tuple[Expression, ...]]
"""Sizes of tensors, by their names in traces."""

_NO_SHAPES: Shapes = MappingProxyType({})
_WORD = re.compile(r"(-?\w[\w.]*(?:(?<=[\d.]e)[+-]\d+)?)")
"""A name with its dots, or a number with all that belongs to it. Traces compute nothing, so that a minus is a sign."""
TEMPLATE = "template__"
"""The names that stand for templates are this and a number, and no other name of a program may begin with it."""
_MADE = re.compile(r"^# Constructed by .*\n", re.MULTILINE)
_COMMENT = re.compile(r'# (\w+): "[^"\[\]\n]*\[([\d, ]*)\]"')
"""What tells the shape of a tensor: ``# t96: "cuda:0 f32[2, 8, 208]"``."""
_FIRST, _DIGITS = "7317317", 9
"""What a mark begins with, and how many other digits it has, which say for which number it stands."""
_MARK = re.compile(rf"{_FIRST}(\d{{{_DIGITS}}})(?:\.0)?")
_MARKS = range(int(_FIRST) * 10**_DIGITS, (int(_FIRST) + 1) * 10**_DIGITS)
_MARKABLE = (int, float, str, type(None), bool, complex, type(...))
"""Types of constants of which it is known where they have numbers."""
_PARTED = (Graph, Op, Instance, TemplateUse, TemplateReference)
"""What templates are made of, field by field."""


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
"""Returns what templates are in this process, whatever their digests say."""


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


class GeneralProgram:
    """What several programs have in common.

    Args:
        programs: each with the numbers that it was made for.
        expressions: of which each number that is no constant is one.
        shapes: of tensors whose sizes are in comments alone, and may be none of the expressions.

    Raises:
        Declined: if they differ in something else, or a number is none of these.
    """

    def __init__(
        self,
        programs: Sequence[tuple[ProgramText, Numbers]],
        expressions: Collection[Expression],
        shapes: Shapes = _NO_SHAPES,
    ):
        texts, sizes = zip(*programs, strict=True)
        self._shapes = shapes
        self._variables = _Variables(sizes, expressions)
        self._names = [{name: f"{TEMPLATE}{n}" for n, name in enumerate(list_templates(text))} for text in texts]
        self._templates: dict[str, tuple[Sequence[TemplateReference], Any]] = {}
        self._layouts: dict[str, tuple[tuple[ArgumentLayouts, ...], ...]] = {}
        _require_same([(text.backward is None, text.returns_none_for_gradients) for text in texts])
        waiting = zip(*(text.traces() for text in texts), strict=True)
        self._places = texts[0].map_traces(lambda _: self._unify_traces(next(waiting)))
        self._codes: tuple[CodeType, ...] = ()
        self._prologue: tuple[Mapping[str, Any], rewriting.NewPrologue] | None = None

    def _unify_traces(self, traces: Sequence[TraceText]) -> TraceText:
        """Returns a trace with marks for numbers, and with names that stand for those of templates."""
        _require_same([trace.name for trace in traces])
        contexts = [
            {names.get(name, name): reference for name, reference in trace.context.items()}
            for names, trace in zip(self._names, traces, strict=True)
        ]
        _require_same([context.keys() for context in contexts])
        unified = {name: self._unify_references(name, [each[name] for each in contexts]) for name in contexts[0]}
        return TraceText(traces[0].name, self._unify_texts([_MADE.sub("", each.source) for each in traces]), unified)

    def _unify_references(self, name: str, references: Sequence[Any]) -> Reference:
        first: Reference = references[0]
        if isinstance(first, TemplateReference):
            known = [_drop_process_facts(each) for each in references]
            if name not in self._templates:
                self._templates[name] = known, _unify_parts(known, self._variables)
                self._layouts[name] = tuple(use.layouts for use in first.uses)
            elif repr(self._templates[name][0]) != repr(known):
                raise Declined("two templates have one name", Scope.LENGTH)
        else:
            _require_same(references)
        return first

    def _unify_texts(self, sources: Sequence[str]) -> str:
        if any(TEMPLATE in source for source in sources):
            raise Declined(f"it has names with {TEMPLATE} in them", Scope.LENGTH)
        if any(_FIRST in source for source in sources):
            raise Declined("one of its numbers may be another size", Scope.LENGTH)
        told = dict(self._find_told(sources[0]))
        split = [_WORD.split(source) for source in sources]
        _require_same([(len(pieces), pieces[::2]) for pieces in split])
        unified, start = split[0], 0
        for place, words in enumerate(zip(*split, strict=True)):
            if place % 2:
                unified[place] = self._unify_words(words, told.get(start))
            start += len(words[0])
        return "".join(unified)

    def _find_told(self, source: str) -> Iterator[tuple[int, Expression]]:
        """Yields what the numbers at some positions are, by the names of the tensors that have them for sizes."""
        for found in _COMMENT.finditer(source):
            numbers, shape = list(re.finditer(r"\d+", found[2])), self._shapes.get(found[1], ())
            if len(numbers) == len(shape):
                yield from ((found.start(2) + each.start(), size) for each, size in zip(numbers, shape, strict=True))

    def _unify_words(self, words: Sequence[str], told: Expression | None) -> str:
        numbers = [number for number in map(read_number, words) if number is not None]
        if len(numbers) == len(words):
            found = self._variables.explain(numbers, told)
            return str(found) if isinstance(found, int | Float) else _mark(*found)
        named = [names.get(word, word) for names, word in zip(self._names, words, strict=True)]
        _require_same(named)
        return named[0]

    def prepare(self) -> None:
        """Has Python compile the texts, which takes longer than to fill them in.

        Raises:
            Declined: if a number is where none can be filled in.
        """
        self._codes = self._codes or tuple(map(_compile, self._places.traces()))

    def fill(self, numbers: Numbers, identify: Identify) -> FilledProgram:
        """Returns the program at other sizes.

        Args:
            numbers: that sizes are made of.
            identify: tells what its templates are.

        Raises:
            Declined: if a number is not known.
        """
        self.prepare()
        known, identities, values = self.fill_templates(numbers, identify)
        names = {name: each.name for name, each in identities.items()}
        text = self._places.map_traces(lambda trace: _fill_trace(trace, values, names, known))
        files = map(build.name_file, text.traces())
        codes = tuple(_fill_code(*each, values, names) for each in zip(self._codes, files, strict=True))
        digests = tuple(identities[f"{TEMPLATE}{number}"].digest for number in range(len(identities)))
        compiled = CompiledProgram(codes, lambda prologue: self._rewrite_prologue(prologue, values, names))
        return FilledProgram(text, compiled, digests)

    def _add_process_facts(self, name: str, reference: TemplateReference, digest: str) -> TemplateReference:
        """Returns a template with its digest in this process and the predicted layouts of its arguments."""
        uses = tuple(
            replace(use, layouts=_lay_out(use, reference.graph, layouts))
            for use, layouts in zip(reference.uses, self._layouts[name], strict=True)
        )
        return replace(reference, digest=digest, uses=uses)

    def fill_templates(
        self, numbers: Numbers, identify: Identify
    ) -> tuple[dict[str, TemplateReference], Mapping[str, Identity], Sequence[int | float]]:
        """Returns the templates at other sizes, what they are in this process, and the values of variables.

        Each template has the name ``template__n`` for its number in ``list_templates``.

        Raises:
            Declined: if a number is not known.
        """
        values = self._variables.evaluate_all(numbers)
        templates: dict[str, TemplateReference] = {
            name: _fill_part(part, values) for name, (_, part) in self._templates.items()
        }
        identities = identify(templates)
        known = {name: self._add_process_facts(name, each, identities[name].digest) for name, each in templates.items()}
        return known, identities, values

    def _rewrite_prologue(
        self, prologue: Callable[..., Any], values: Sequence[int | float], names: Mapping[str, str]
    ) -> Callable[..., Any]:
        """Returns a faster function in place of a prologue that was filled in: written once for all sizes.

        Raises:
            Declined: if the prologue is not as Thunder writes.
        """
        function = rewriting.check_prologue(prologue)
        context = {name: value for name, value in function.__globals__.items() if name != FUNCTION_OBJECT}
        if self._prologue is None or not _is_same(self._prologue[0], context):
            (code,) = (each for each in self._codes[0].co_consts if isinstance(each, CodeType))
            written = rewriting.write(self._places.prologue.source, code, function.__globals__)
            self._prologue = context, written
        written = self._prologue[1]
        code = _fill_code(written.code, rewriting.name_file(function.__code__.co_filename), values, names)
        return replace(written, text=_fill_text(written.text, values), code=code).bind(function)


def list_templates(program: ProgramText) -> list[str]:
    """Returns the names of templates in the order in which they are called first.

    Raises:
        Declined: if the program has a template that it does not call.
    """
    known = program.templates()
    words = (word for trace in program.traces() for word in re.findall(r"\w+", trace.source))
    called = list(dict.fromkeys(word for word in words if word in known))
    if len(called) < len(known):
        raise Declined("it names a template that it does not call", Scope.LENGTH)
    return called


def read_number(word: str) -> int | float | None:
    """Returns the number that a word of a text is, or None if Python would not write it so: "007" is part of a text."""
    if not word.removeprefix("-")[:1].isdecimal():
        return None
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(word)) == word:
                return kind(word)
    return None


def _require_same(values: Sequence[object]) -> None:
    if any(value != values[0] for value in values):
        raise Declined("they differ in more than numbers", Scope.LENGTH)


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name] is value for name, value in other.items())


def _drop_process_facts(reference: TemplateReference) -> TemplateReference:
    """Returns a template without what one process knows of it at its sizes."""
    return replace(reference, digest="", uses=tuple(replace(use, layouts=()) for use in reference.uses))


def _lay_out(use: TemplateUse, template: Graph, layouts: Sequence[ArgumentLayouts]) -> tuple[ArgumentLayouts, ...]:
    """Returns the layouts of a template's arguments at its sizes, with the axis order that they have at known sizes."""
    graph = inline(template, use.arities)
    found = (lay_out_alike(each, graph) for each in layouts)
    return tuple(each for each in found if each is not None)


def _mark(position: int, expressions: Sequence[Expression]) -> str:
    return str(float(_MARKS[position]) if any(map(gives_float, expressions)) else _MARKS[position])


def _compile(trace: TraceText) -> CodeType:
    """Compiles a text with marks.

    Raises:
        Declined: if it is no Python, or a mark may be in what is no number, text or collection of these.
    """
    try:
        code = build.compile_trace(trace)
    except ValueError as error:
        raise Declined(str(error), Scope.LENGTH) from error
    for constant in _list_constants(code.co_consts):
        if not isinstance(constant, _MARKABLE):
            raise Declined(f"it has a constant of type {type(constant).__qualname__}", Scope.LENGTH)
    return code


def _list_constants(constants: Collection[Any]) -> Iterator[Any]:
    for each in constants:
        if isinstance(each, CodeType | tuple | frozenset):
            yield from _list_constants(each.co_consts if isinstance(each, CodeType) else each)
        else:
            yield each


def _fill_trace(
    trace: TraceText,
    values: Sequence[int | float],
    names: Mapping[str, str],
    templates: Mapping[str, TemplateReference],
) -> TraceText:
    """Returns a trace with these values for marks, and with these names and templates."""
    context = {names.get(name, name): templates.get(name, reference) for name, reference in trace.context.items()}
    source = re.sub(rf"{TEMPLATE}\d+", lambda found: names[found[0]], _fill_text(trace.source, values))
    return TraceText(trace.name, source, dict(sorted(context.items())))


def _fill_text(text: str, values: Sequence[int | float]) -> str:
    return _MARK.sub(lambda found: str(values[int(found[1])]), text)


def _fill_code(code: CodeType, file: str, values: Sequence[int | float], names: Mapping[str, str]) -> CodeType:
    """Returns code with these values for marks, and with these names, as that of another file."""

    def fill(constant: Any) -> Any:
        match constant:
            case bool():
                return constant
            case int() | float():
                is_mark = _MARKS.start <= constant < _MARKS.stop
                return values[int(constant) - _MARKS.start] if is_mark else constant
            case str():
                return _fill_text(constant, values)
            case tuple() | frozenset():
                return type(constant)(map(fill, constant))
            case CodeType():
                return _fill_code(constant, file, values, names)
        return constant

    return code.replace(
        co_consts=tuple(map(fill, code.co_consts)),
        co_names=tuple(names.get(each, each) for each in code.co_names),
        co_filename=file,
    )


class _Variables:
    """The numbers that vary among programs.

    Args:
        sizes: the numbers that each program was made for.
        expressions: of which each variable is one.
    """

    def __init__(self, sizes: Sequence[Numbers], expressions: Collection[Expression]):
        self._sizes = sizes
        self._found: dict[tuple[Expression, ...], int] = {}
        self._known: dict[tuple[Expression, ...], list[Expression]] = {}
        for expression in expressions:
            self._known.setdefault(self._list_values(expression), []).append(expression)
        same = [(each, values[0]) for values, some in self._known.items() if len(set(values)) == 1 for each in some]
        # The simplest comes first, as the reason of a refusal names one.
        self._unchanged = sorted(same, key=lambda item: len(str(item[0])))

    def _list_values(self, expression: Expression) -> tuple[Expression, ...]:
        return tuple(_evaluate(expression, numbers) for numbers in self._sizes)

    def explain(
        self, numbers: Sequence[int | float], told: Expression | None = None
    ) -> int | Float | tuple[int, tuple[Expression, ...]]:
        """Returns the constant that numbers are, or the position of the variable that they are, and its expressions.

        Args:
            numbers: one of each program, in the same place.
            told: what they are made of, if that is known.

        Raises:
            Declined: if they are made of something else.
        """
        values = tuple(map(write_constant, numbers))
        if told is not None and values != self._list_values(told):
            raise Declined(f"a size is {', '.join(map(str, values))}, and not {told}", Scope.LENGTH)
        constant = values[0] if told is None and len(set(values)) == 1 else told
        if isinstance(constant, int | Float):
            return constant
        if told is None and values not in self._known:
            listed = ", ".join(map(str, values))
            raise Declined(f"a number is {listed} at the known lengths: Thunder computed no such size", Scope.LENGTH)
        expressions = tuple(self._known[values]) if told is None else (told,)
        return self._found.setdefault(expressions, len(self._found)), expressions

    def evaluate_all(self, numbers: Numbers) -> Sequence[int | float]:
        """Returns the values of all variables at other sizes, by position.

        Raises:
            Declined: if one is not known: expressions that had one value so far may be a constant's by chance.
        """
        for expression, value in self._unchanged:
            if _evaluate(expression, numbers) != value:
                raise Declined(f"{expression} was {value} so far", Scope.LENGTH)
        found = [{_evaluate(one, numbers) for one in each} for each in self._found]
        if any(len(values) > 1 for values in found):
            raise Declined("a number in it may be one of several sizes", Scope.LENGTH)
        return tuple(evaluate(value, {}) for (value,) in found)


def _evaluate(expression: Expression, numbers: Numbers) -> Expression:
    """Returns what an expression comes to as a constant, by which 1 is not 1.0.

    Raises:
        Declined: if it cannot be computed.
    """
    try:
        return write_constant(evaluate(expression, numbers))
    except ArithmeticError as error:
        raise Declined(str(error), Scope.LENGTH) from error


@dataclass(frozen=True, slots=True)
class _Varying:
    """A part of a template that is a variable, or has one in it.

    Attributes:
        fill: returns it as it is with these values of variables.
    """

    fill: Callable[[Sequence[int | float]], Any]


def _make_part(make: Callable[..., Any], *of: Any) -> Any:
    """Returns what is made of these: now, or anew at other sizes if a variable is in them."""
    if not any(isinstance(each, _Varying) for each in of):
        return make(*of)
    return _Varying(lambda values: make(*[_fill_part(each, values) for each in of]))


def _fill_part(part: Any, values: Sequence[int | float]) -> Any:
    """Returns a part as it is with these values of variables."""
    return part.fill(values) if isinstance(part, _Varying) else part


def _unify_parts(values: Sequence[Any], variables: _Variables) -> Any:
    """Returns what these values have in common: one of each program, in the same place.

    Raises:
        Declined: if they differ in more than numbers.
    """
    _require_same(list(map(type, values)))
    first = values[0]
    if isinstance(first, tuple):
        _require_same(list(map(len, values)))
        return _make_part(_list, *(_unify_parts(each, variables) for each in zip(*values, strict=True)))
    if isinstance(first, TensorType):
        _require_same([len(value.shape) for value in values])
        sizes = (_unify_sizes(each, variables) for each in zip(*(value.shape for value in values), strict=True))
        dtype, device = (_unify_equal([getattr(value, name) for value in values]) for name in ("dtype", "device"))
        return _make_part(TensorType, dtype, _make_part(_list, *sizes), device)
    if isinstance(first, _PARTED):
        names = [each.name for each in fields(first) if each.init]
        parts = (_unify_parts([getattr(each, name) for each in values], variables) for name in names)
        return _make_part(type(first), *parts)
    numbers = [number for value in values if (number := _read_constant(value)) is not None]
    if len(numbers) == len(values):
        return _make_part(_write_number, _unify_equal([value.kind for value in values]), _take(numbers, variables))
    return _unify_equal(values)


def _unify_equal(values: Sequence[Any]) -> Any:
    # What is equal may not be the same: 1 and 1.0, 0.0 and -0.0.
    _require_same(list(map(repr, values)))
    return values[0]


def _unify_sizes(sizes: Sequence[Any], variables: _Variables) -> Any:
    is_number = all(isinstance(size, int) for size in sizes)
    return _take(sizes, variables) if is_number else _unify_parts(sizes, variables)


def _take(numbers: Sequence[int | float], variables: _Variables) -> Any:
    """Returns a constant, or the variable that numbers are."""
    found = variables.explain(numbers)
    return evaluate(found, {}) if isinstance(found, int | Float) else _Varying(itemgetter(found[0]))


def _list(*items: Any) -> tuple[Any, ...]:
    return items


def _read_constant(value: object) -> int | float | None:
    """Returns the number that a literal of a template is; None if it is none, or no literal."""
    if not isinstance(value, Const):
        return None
    if value.kind == "int":
        return int(value.text)
    if value.kind == "float" and isfinite(number := float.fromhex(value.text)):
        return number
    return None


def _write_number(kind: str, number: int | float) -> Const:
    return Const(kind, number.hex() if isinstance(number, float) else str(number))
