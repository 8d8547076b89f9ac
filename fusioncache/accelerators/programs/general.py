"""Programs that differ only in numbers, as one with a place for each: from those at known sizes to one at others.

A program is data, and so is each number in it: in the text of a trace, in the shapes and the literals of a template.
Two programs with the same text but for numbers have them in the same places. What a number is made of is not read off
its values alone: whoever brings the programs knows the expressions of which each number that is no constant has to be
one. Of those the ones that have the right value in each program remain. Where they do not agree at other sizes, there
is no program for these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

from fusioncache.accelerators.programs.annotations import Shapes, mark_sizes
from fusioncache.accelerators.programs.text import (
    CudaGraphReference,
    ProgramText,
    Reference,
    TemplateReference,
    TemplateUse,
    TraceText,
)
from fusioncache.accelerators.sizes.expressions import Expression, evaluate, write_constant
from fusioncache.ir import Const, Declined, Graph, Instance, Op, Scope, TensorType
from fusioncache.ir.graph import Arg, ValueType

type Numbers = Mapping[int, int]
type New = Callable[[Any], Any]

_NO_SHAPES: Shapes = MappingProxyType({})

WORD = re.compile(r"-?\w[\w.]*(?:(?<=[\d.]e)[+-]\d+)?")
"""A name with its dots, or a number with all that belongs to it. Traces compute nothing, so that a minus is a sign."""
TEMPLATE = "template__"
"""What stands for the names of templates begins with it, and nothing else in a program may."""
_MADE = re.compile(r"^# Constructed by .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GeneralProgram:
    """A program with expressions in the place of numbers.

    Attributes:
        places: the program, with a position among ``values`` in the place of each number. Its templates have numbers
            for names, and no digests.
        values: what numbers are made of: all expressions that have been right so far. Each is there once.
        unchanged: expressions that have one value in all programs it was made of, which may be a constant's by chance,
            and that.
    """

    places: ProgramText
    values: tuple[tuple[Expression, ...], ...]
    unchanged: Mapping[Expression, Expression]

    def evaluate(self, numbers: Numbers) -> tuple[int | float, ...]:
        """Returns the values at other sizes.

        Raises:
            Declined: if one is not known.
        """
        for expression, value in self.unchanged.items():
            if _evaluate(expression, numbers) != value:
                raise Declined(f"{expression} was {value} so far", Scope.LENGTH)
        found = [{_evaluate(one, numbers) for one in each} for each in self.values]
        if any(len(values) > 1 for values in found):
            raise Declined("a number in it may be one of several sizes", Scope.LENGTH)
        return tuple(evaluate(value, {}) for (value,) in found)


def generalize(
    programs: Sequence[tuple[ProgramText, Numbers]], expressions: Collection[Expression], shapes: Shapes = _NO_SHAPES
) -> GeneralProgram:
    """Returns what several programs have in common.

    Args:
        programs: each with the numbers that it was made for.
        expressions: of which each number that is no constant is one.
        shapes: of tensors whose sizes are in comments alone, and may be none of the expressions.

    Raises:
        Declined: if they differ in something else, or a number is none of these.
    """
    blanks = [blank(program) for program, _ in programs]
    rests, lists = zip(*map(take_numbers, blanks), strict=True)
    if any(rest != rests[0] for rest in rests):
        raise Declined("they differ in more than numbers", Scope.LENGTH)
    known: dict[tuple[Expression, ...], list[Expression]] = {}
    for expression in expressions:
        values = tuple(_evaluate(expression, numbers) for _, numbers in programs)
        known.setdefault(values, []).append(expression)
    same = [(each, values[0]) for values, some in known.items() if len(set(values)) == 1 for each in some]
    # What is told of is the simplest.
    unchanged = dict(sorted(same, key=lambda item: len(str(item[0]))))
    told = _find_told(blanks[0], shapes, lists[0])
    lines = [tuple(map(write_constant, each)) for each in zip(*lists, strict=True)]
    explained = [
        _explain(known, values) if size is None else _check_told(size, values, programs)
        for size, values in zip(told, lines, strict=True)
    ]
    positions = {each: position for position, each in enumerate(dict.fromkeys(explained))}
    waiting = iter(explained)
    places = map_numbers(blanks[0], lambda _: positions[next(waiting)])
    return GeneralProgram(places, tuple(positions), unchanged)


def _evaluate(expression: Expression, numbers: Numbers) -> Expression:
    """Returns what an expression comes to as a constant, by which 1 is not 1.0.

    Raises:
        Declined: if it cannot be computed.
    """
    try:
        return write_constant(evaluate(expression, numbers))
    except ArithmeticError as error:
        raise Declined(str(error), Scope.LENGTH) from error


def _explain(
    known: Mapping[tuple[Expression, ...], list[Expression]], values: tuple[Expression, ...]
) -> tuple[Expression, ...]:
    if len(set(values)) == 1:
        return values[:1]
    if values not in known:
        raise Declined(
            f"a number is {', '.join(map(str, values))} at the known lengths: Thunder computed no such size",
            Scope.LENGTH,
        )
    return tuple(known[values])


def _find_told(program: ProgramText, shapes: Shapes, numbers: Sequence[int | float]) -> Sequence[Expression | None]:
    """Returns what is told of each number of a program by the name of the tensor that has it for a size."""
    first = max((abs(number) for number in numbers if isinstance(number, int)), default=0) + 1
    marked, sizes = mark_sizes(program, shapes, first)
    found = take_numbers(marked)[1]
    return [sizes[each - first] if isinstance(each, int) and each >= first else None for each in found]


def _check_told(
    size: Expression, values: tuple[Expression, ...], programs: Sequence[tuple[ProgramText, Numbers]]
) -> tuple[Expression]:
    if values != tuple(_evaluate(size, numbers) for _, numbers in programs):
        raise Declined(f"a size is {', '.join(map(str, values))}, and not {size}", Scope.LENGTH)
    return (size,)


def take_numbers(program: ProgramText) -> tuple[ProgramText, tuple[int | float, ...]]:
    """Returns a program with zeros for numbers, and these in the order in which ``map_numbers`` comes to them."""
    found: list[int | float] = []

    def take(number: int | float) -> int | float:
        found.append(number)
        return type(number)(0)

    return map_numbers(program, take), tuple(found)


def blank(program: ProgramText) -> ProgramText:
    """Returns a program without what follows from its numbers, and without the seconds that its passes took.

    Raises:
        Declined: if a name in it is one that stands for a template, or it does not call each of its templates.
    """
    if any(TEMPLATE in trace.source for trace in program.texts()):
        raise Declined(f"it has names with {TEMPLATE} in them", Scope.LENGTH)
    names = {name: f"{TEMPLATE}{number}" for number, name in enumerate(list_templates(program))}
    if names.keys() != program.templates().keys():
        raise Declined("it names a template that it does not call", Scope.LENGTH)
    return rename_templates(program, names).map_traces(_blank_trace)


def list_templates(program: ProgramText) -> Iterator[str]:
    """Yields the names of templates in the order in which they are called first."""
    known = program.templates()
    words = (word for trace in program.texts() for word in re.findall(r"\w+", trace.source))
    return iter(dict.fromkeys(word for word in words if word in known))


def _blank_trace(trace: TraceText) -> TraceText:
    context = {name: _blank_reference(reference) for name, reference in trace.context.items()}
    return replace(trace, source=_MADE.sub("", trace.source), context=context)


def _blank_reference(reference: Reference) -> Reference:
    match reference:
        case TemplateReference(uses=uses):
            return replace(reference, digest="", uses=tuple(replace(use, layouts=()) for use in uses))
        case CudaGraphReference(trace):
            return replace(reference, trace=_blank_trace(trace))
    return reference


def rename_templates(program: ProgramText, names: Mapping[str, str]) -> ProgramText:
    """Returns a program whose templates have other names."""
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b") if names else None

    def rename(trace: TraceText) -> TraceText:
        source = pattern.sub(lambda found: names[found[0]], trace.source) if pattern else trace.source
        context = {
            names.get(name, name): (
                replace(reference, trace=rename(reference.trace))
                if isinstance(reference, CudaGraphReference)
                else reference
            )
            for name, reference in trace.context.items()
        }
        return TraceText(trace.name, source, dict(sorted(context.items())))

    return program.map_traces(rename)


def map_numbers(program: ProgramText, new: New) -> ProgramText:
    """Returns a program with other numbers, to each of which it comes in the same order.

    Args:
        program: the program.
        new: returns what to have in place of a number. Numbers in names are none, nor is what Python would write
            otherwise.
    """
    return program.map_traces(lambda trace: _map_trace(trace, new))


def _map_trace(trace: TraceText, new: New) -> TraceText:
    source = WORD.sub(lambda found: _exchange(found[0], new), trace.source)
    context = {name: _map_reference(reference, new) for name, reference in trace.context.items()}
    return TraceText(trace.name, source, context)


def read_number(word: str) -> int | float | None:
    """Returns the number that a word of a text is, or None if Python would not write it so: "007" is part of a text."""
    if not word.removeprefix("-")[:1].isdecimal():
        return None
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(word)) == word:
                return kind(word)
    return None


def _exchange(word: str, new: New) -> str:
    number = read_number(word)
    return word if number is None else str(new(number))


def _map_reference(reference: Reference, new: New) -> Reference:
    match reference:
        case TemplateReference():
            return _map_template(reference, new)
        case CudaGraphReference(trace):
            return replace(reference, trace=_map_trace(trace, new))
    return reference


def _map_template(reference: TemplateReference, new: New) -> TemplateReference:
    """Returns a template with other numbers, and the regions for which it is called."""
    uses = tuple(_map_use(use, new) for use in reference.uses)
    return replace(reference, graph=_map_graph(reference.graph, new), uses=uses)


def _map_use(use: TemplateUse, new: New) -> TemplateUse:
    old = use.instance
    region, plain = _map_graph(old.region, new), old.plain and _map_graph(old.plain, new)
    return replace(use, instance=Instance(region, old.inputs, old.outputs, plain))


def _map_graph(graph: Graph, new: New) -> Graph:
    inputs = tuple(_map_type(each, new) for each in graph.inputs)
    return replace(graph, inputs=inputs, ops=tuple(_map_op(op, new) for op in graph.ops))


def _map_op(op: Op, new: New) -> Op:
    args = tuple(_map_arg(arg, new) for arg in op.args)
    kwargs = tuple((name, _map_arg(arg, new)) for name, arg in op.kwargs)
    return Op(op.name, args, tuple(_map_type(each, new) for each in op.outputs), kwargs)


def _map_type[T: ValueType | None](type_: T, new: New) -> T | TensorType:
    if not isinstance(type_, TensorType):
        return type_
    # Not by replace: there are a thousand of these in a program of four layers.
    shape = tuple([new(size) if isinstance(size, int) else size for size in type_.shape])
    return TensorType(type_.dtype, shape, type_.device)


def _map_arg(arg: Arg, new: New) -> Arg:
    if isinstance(arg, tuple):
        return tuple(_map_arg(each, new) for each in arg)
    if not isinstance(arg, Const):
        return arg
    number = read_constant(arg)
    return arg if number is None else write_number(arg.kind, new(number))


def read_constant(arg: Const) -> int | float | None:
    """Returns the number that a constant is; in the places of a general program, the position of one."""
    if arg.kind == "int" or (arg.kind == "float" and arg.text.isdecimal()):
        return int(arg.text)
    if arg.kind == "float" and isfinite(value := float.fromhex(arg.text)):
        return value
    return None


def write_number(kind: str, number: int | float) -> Const:
    """Returns a constant of this kind that is a number."""
    return Const(kind, number.hex() if isinstance(number, float) else str(number))
