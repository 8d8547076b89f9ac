"""A general program: programs that differ only in numbers, unified into one that can be filled in at other sizes.

A program is data, and so is each number in it: in the text of a trace, in the shapes and the literals of a template.
The values of a number do not determine its expression. So the caller passes candidate expressions, and each number that
is not a constant must be one of them. The candidates that have the right value in each program remain. If these
disagree at other sizes, filling in is declined. Other expressions may be in comments: there a
``?`` replaces each number that has the values of one of these.

In a text a *mark* replaces each number that varies. A mark is a number that occurs in no text. Python compiles the text
with marks once, and the code objects at other sizes are copies with other constants and names. Only the parts of a
template that contain a variable are rebuilt at other sizes: that takes less time, and leaves less to Python's garbage
collector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from math import isfinite
from operator import itemgetter
from types import CodeType
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
"""The values of the numbers in size expressions, by position."""

_WORD = re.compile(r"(-?\w[\w.]*(?:(?<=[\d.]e)[+-]\d+)?)")
"""A dotted name, or a number with sign, fraction and exponent. Traces have no arithmetic, so a minus is a sign."""
TEMPLATE = "template__"
"""Prefix of the names that replace those of templates; a number follows. No name in a program's text may contain it."""
_MADE = re.compile(r"^# Constructed by .*\n", re.MULTILINE)
_COMMENT = re.compile(r'# \w+: "[^"\[\]\n]*\[([\d, ]*)\]"$', re.MULTILINE)
"""A comment with the shape of a tensor: ``# t96: "cuda:0 f32[2, 8, 208]"``. No string literal ends a line like this."""
_FIRST, _DIGITS = "7317317", 9
"""The first digits of a mark, and how many digits follow: they are the position of the variable."""
_MARK = re.compile(rf"{_FIRST}(\d{{{_DIGITS}}})(?:\.0)?")
_MARKS = range(int(_FIRST) * 10**_DIGITS, (int(_FIRST) + 1) * 10**_DIGITS)
_MARKABLE = (int, float, str, type(None), bool, complex, type(...))
"""Types of constants in code that either are filled in or cannot contain a mark."""
_UNIFIED_BY_FIELD = (Graph, Op, Instance, TemplateUse, TemplateReference)
"""Dataclasses that make up a template and are unified field by field."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The name and the digest of a template in this process.

    Attributes:
        name: of its calls.
        digest: of its key.
    """

    name: str
    digest: str


type Identify = Callable[[Mapping[str, TemplateReference]], Mapping[str, Identity]]
"""Returns the names and digests of templates in this process. The digests in the references are ignored."""


@dataclass(frozen=True, slots=True)
class FilledProgram:
    """A program that was filled in.

    Attributes:
        text: its traces.
        compiled: its code objects, equal to those that Python would compile from the text.
        digests: of its templates, in the order of their first calls.
    """

    text: ProgramText
    compiled: CompiledProgram
    digests: tuple[str, ...]


class GeneralProgram:
    """A program with variables, unified from several programs that differ only in numbers.

    Args:
        programs: each with the numbers that it was derived for.
        expressions: the candidates; each number that is not a constant must be one of them.
        in_comments: further expressions, of sizes in comments.

    Raises:
        Declined: if the programs differ in more than numbers, or a number is none of the expressions.
    """

    def __init__(
        self,
        programs: Sequence[tuple[ProgramText, Numbers]],
        expressions: Collection[Expression],
        in_comments: Collection[Expression] = (),
    ):
        texts, sizes = zip(*programs, strict=True)
        self._variables = _Variables(sizes, expressions)
        self._in_comments = set(map(self._variables.list_values, in_comments))
        self._names = [{name: f"{TEMPLATE}{n}" for n, name in enumerate(list_templates(text))} for text in texts]
        self._templates: dict[str, tuple[Sequence[TemplateReference], Any]] = {}
        self._layouts: dict[str, tuple[tuple[ArgumentLayouts, ...], ...]] = {}
        _require_same([(text.backward is None, text.returns_none_for_gradients) for text in texts])
        waiting = zip(*(text.traces() for text in texts), strict=True)
        self._places = texts[0].map_traces(lambda _: self._unify_traces(next(waiting)))
        self._codes: tuple[CodeType, ...] = ()
        self._prologue: tuple[Mapping[str, Any], rewriting.NewPrologue] | None = None

    def _unify_traces(self, traces: Sequence[TraceText]) -> TraceText:
        """Returns a trace in which marks replace numbers, and ``template__n`` replaces the names of templates."""
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
        comments = [range(*found.span(1)) for found in _COMMENT.finditer(sources[0])]
        shown = {position for comment in comments for position in comment}
        split = [_WORD.split(source) for source in sources]
        _require_same([(len(pieces), pieces[::2]) for pieces in split])
        unified, start = split[0], 0
        for place, words in enumerate(zip(*split, strict=True)):
            if place % 2:
                unified[place] = self._unify_words(words, is_shown=start in shown)
            start += len(words[0])
        return "".join(unified)

    def _unify_words(self, words: Sequence[str], *, is_shown: bool) -> str:
        numbers = [number for number in map(read_number, words) if number is not None]
        if is_shown and tuple(numbers) in self._in_comments:
            return "?"
        if len(numbers) == len(words):
            found = self._variables.explain(numbers)
            return str(found) if isinstance(found, int | Float) else _mark(*found)
        named = [names.get(word, word) for names, word in zip(self._names, words, strict=True)]
        _require_same(named)
        return named[0]

    def prepare(self) -> None:
        """Compiles the texts with marks, which takes longer than filling them in.

        Raises:
            Declined: if a text does not compile, or a mark may be in a constant that cannot be filled in.
        """
        self._codes = self._codes or tuple(map(_compile, self._places.traces()))

    def fill(self, numbers: Numbers, identify: Identify) -> FilledProgram:
        """Returns the program at other sizes.

        Args:
            numbers: the values of the numbers in size expressions.
            identify: returns the names and digests of its templates.

        Raises:
            Declined: if the value of a number cannot be determined.
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
        """Returns the templates at other sizes, their identities in this process, and the values of variables.

        Templates are named ``template__n``, where n is the position in ``list_templates``.

        Raises:
            Declined: if the value of a number cannot be determined.
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
        """Returns a faster function that replaces a prologue that was filled in. Its text is made once for all sizes.

        Raises:
            Declined: if the prologue does not have the form that Thunder writes.
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
    """Returns the names of templates in the order of their first calls.

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
    """Returns the number that a word is; None if Python would not print it so: "007" is part of a string."""
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
    """Returns a template without its digest and layouts, which depend on the process and the sizes."""
    return replace(reference, digest="", uses=tuple(replace(use, layouts=()) for use in reference.uses))


def _lay_out(use: TemplateUse, template: Graph, layouts: Sequence[ArgumentLayouts]) -> tuple[ArgumentLayouts, ...]:
    """Returns the layouts of a template's arguments at new sizes, with the axis order of the given layouts."""
    graph = inline(template, use.arities)
    found = (lay_out_alike(each, graph) for each in layouts)
    return tuple(each for each in found if each is not None)


def _mark(position: int, expressions: Sequence[Expression]) -> str:
    return str(float(_MARKS[position]) if any(map(gives_float, expressions)) else _MARKS[position])


def _compile(trace: TraceText) -> CodeType:
    """Compiles a text with marks.

    Raises:
        Declined: if it is not valid Python, or a mark may be in a constant that is not a number, a string or a
            collection of these.
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
    """Returns a trace in which these values replace marks, with these names and templates."""
    context = {names.get(name, name): templates.get(name, reference) for name, reference in trace.context.items()}
    source = re.sub(rf"{TEMPLATE}\d+", lambda found: names[found[0]], _fill_text(trace.source, values))
    return TraceText(trace.name, source, dict(sorted(context.items())))


def _fill_text(text: str, values: Sequence[int | float]) -> str:
    return _MARK.sub(lambda found: str(values[int(found[1])]), text)


def _fill_code(code: CodeType, file: str, values: Sequence[int | float], names: Mapping[str, str]) -> CodeType:
    """Returns a code object in which these values and names replace marks and placeholders, with this file name."""

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
        sizes: the numbers that each program was derived for.
        expressions: the candidates, of which each variable is one.
    """

    def __init__(self, sizes: Sequence[Numbers], expressions: Collection[Expression]):
        self._sizes = sizes
        self._found: dict[tuple[Expression, ...], int] = {}
        self._known: dict[tuple[Expression, ...], list[Expression]] = {}
        for expression in expressions:
            self._known.setdefault(self.list_values(expression), []).append(expression)
        same = [(each, values[0]) for values, some in self._known.items() if len(set(values)) == 1 for each in some]
        # The simplest comes first: the message of Declined names the first that changes.
        self._unchanged = sorted(same, key=lambda item: len(str(item[0])))

    def list_values(self, expression: Expression) -> tuple[Expression, ...]:
        """Returns the values of an expression in the programs."""
        return tuple(_evaluate(expression, numbers) for numbers in self._sizes)

    def explain(self, numbers: Sequence[int | float]) -> int | Float | tuple[int, tuple[Expression, ...]]:
        """Returns the constant that numbers are, or else the position of their variable and its expressions.

        Args:
            numbers: one from each program, at the same place.

        Raises:
            Declined: if they vary and match no candidate.
        """
        values = tuple(map(write_constant, numbers))
        if len(set(values)) == 1:
            return values[0]
        if values not in self._known:
            listed = ", ".join(map(str, values))
            raise Declined(f"a number is {listed} at the known lengths: Thunder computed no such size", Scope.LENGTH)
        expressions = tuple(self._known[values])
        return self._found.setdefault(expressions, len(self._found)), expressions

    def evaluate_all(self, numbers: Numbers) -> Sequence[int | float]:
        """Returns the values of all variables at other sizes, by position.

        Raises:
            Declined: if a variable is ambiguous, or an expression changes that had one value in all programs: a number
                that was taken for a constant may have been this expression.
        """
        for expression, value in self._unchanged:
            if _evaluate(expression, numbers) != value:
                raise Declined(f"{expression} was {value} so far", Scope.LENGTH)
        found = [{_evaluate(one, numbers) for one in each} for each in self._found]
        if any(len(values) > 1 for values in found):
            raise Declined("a number in it may be one of several sizes", Scope.LENGTH)
        return tuple(evaluate(value, {}) for (value,) in found)


def _evaluate(expression: Expression, numbers: Numbers) -> Expression:
    """Returns the value of an expression as a constant, so that 1 and 1.0 differ.

    Raises:
        Declined: if it cannot be computed.
    """
    return write_constant(evaluate(expression, numbers))


@dataclass(frozen=True, slots=True)
class _Varying:
    """A part of a template that is a variable or contains one.

    Attributes:
        fill: returns the part at given values of variables.
    """

    fill: Callable[[Sequence[int | float]], Any]


def _make_part(make: Callable[..., Any], *of: Any) -> Any:
    """Returns what ``make`` makes of parts; if one contains a variable, a ``_Varying`` that makes it at given sizes."""
    if not any(isinstance(each, _Varying) for each in of):
        return make(*of)
    return _Varying(lambda values: make(*[_fill_part(each, values) for each in of]))


def _fill_part(part: Any, values: Sequence[int | float]) -> Any:
    """Returns a part at these values of variables."""
    return part.fill(values) if isinstance(part, _Varying) else part


def _unify_parts(values: Sequence[Any], variables: _Variables) -> Any:
    """Unifies values, one from each program at the same place, into a part with variables.

    Raises:
        Declined: if they differ in more than numbers, or a number matches no candidate.
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
    if isinstance(first, _UNIFIED_BY_FIELD):
        names = [each.name for each in fields(first) if each.init]
        parts = (_unify_parts([getattr(each, name) for each in values], variables) for name in names)
        return _make_part(type(first), *parts)
    numbers = [number for value in values if (number := _read_constant(value)) is not None]
    if len(numbers) == len(values):
        return _make_part(_write_number, _unify_equal([value.kind for value in values]), _take(numbers, variables))
    return _unify_equal(values)


def _unify_equal(values: Sequence[Any]) -> Any:
    # Values that compare equal may differ: 1 and 1.0, 0.0 and -0.0.
    _require_same(list(map(repr, values)))
    return values[0]


def _unify_sizes(sizes: Sequence[Any], variables: _Variables) -> Any:
    is_number = all(isinstance(size, int) for size in sizes)
    return _take(sizes, variables) if is_number else _unify_parts(sizes, variables)


def _take(numbers: Sequence[int | float], variables: _Variables) -> Any:
    """Returns the constant that numbers are, or their variable as a ``_Varying``."""
    found = variables.explain(numbers)
    return evaluate(found, {}) if isinstance(found, int | Float) else _Varying(itemgetter(found[0]))


def _list(*items: Any) -> tuple[Any, ...]:
    return items


def _read_constant(value: object) -> int | float | None:
    """Returns the number that a literal of a template holds; None for anything else, also for infinity and NaN."""
    if not isinstance(value, Const):
        return None
    if value.kind == "int":
        return int(value.text)
    if value.kind == "float" and isfinite(number := float.fromhex(value.text)):
        return number
    return None


def _write_number(kind: str, number: int | float) -> Const:
    return Const(kind, number.hex() if isinstance(number, float) else str(number))
