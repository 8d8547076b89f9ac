"""The shapes of tensors that the comments of a trace tell: ``# t96: "cuda:0 f32[2, 8, 208]"``.

What a number in a comment is made of is known by the name of the tensor, where it might be several things by its value:
at 64 and 96 tokens a length that is rounded up to a multiple of 32 is the length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fusioncache.accelerators.programs.text import ProgramText, TraceText
from fusioncache.accelerators.sizes.expressions import Expression

type Shapes = Mapping[str, tuple[Expression, ...]]
"""Sizes of tensors, by their names in traces."""

_ANNOTATION = re.compile(r'# (\w+): "([^"\[\]\n]*)\[([\d, ]*)\]"')


def mark_sizes(program: ProgramText, shapes: Shapes, first: int) -> tuple[ProgramText, Sequence[Expression]]:
    """Returns a program with other numbers in the place of sizes in comments, and what each of these stands for.

    Args:
        program: the program.
        shapes: of the tensors whose sizes are marked.
        first: the number in the place of the first size. Each further one is by one larger.
    """
    sizes: list[Expression] = []

    def mark(found: re.Match[str]) -> str:
        name, kind, written = found.groups()
        shape = shapes.get(name)
        if shape is None or len(shape) != len(written.split(",")):
            return found[0]
        marks = range(first + len(sizes), first + len(sizes) + len(shape))
        sizes.extend(shape)
        return f'# {name}: "{kind}[{", ".join(map(str, marks))}]"'

    def mark_all(trace: TraceText) -> TraceText:
        return TraceText(trace.name, _ANNOTATION.sub(mark, trace.source), trace.context)

    return program.map_traces(mark_all), sizes
