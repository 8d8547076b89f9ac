"""Finds where in the user's model the regions of a trace come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusioncache.backends.bound_symbols import argument_names, result_names
from fusioncache.observe.record.observations import MOST_LINES, Line, Source
from fusioncache.transform.provenance.compilation import Compilation, Module
from fusioncache.transform.provenance.neighbours import (
    Near,
    Neighbours,
    common_module,
    find_neighbours,
    layer_of,
    own_module,
)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the regions of one trace, and what a backward trace is to know of its forward trace.

    Attributes:
        regions: the source of each region, by its position in the trace.
        modules: the module that each value of the trace belongs to, by the value's name.
        readers: the lines of the operations in regions that read a value, by the value's name.
    """

    regions: Mapping[int, Source] = field(default_factory=dict)
    modules: Mapping[str, Module] = field(default_factory=dict)
    readers: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)


def find_sources(trace: Any, compilation: Compilation, forward: Sources | None = None) -> Sources:
    """Finds out where each region of a trace comes from. Linear in the trace.

    A region belongs to the module whose parameters it reads; if it reads none, to the innermost module around the
    nearest operations that do, before it and after it. A region between two layers belongs to the one that is later in
    the model, if that is a layer. A region that only reads saved values belongs to the module of these.

    The lines of a region are those of its operations. The lines of a backward region are those of the forward
    operations that it repeats, and of those that read what it reads.

    Args:
        trace: a final trace, with its regions as Thunder made them.
        compilation: the compilation that the trace belongs to.
        forward: the sources of the forward trace, if this is a backward trace.
    """
    near = find_neighbours(trace, compilation.parameters)
    saved = forward or Sources()
    regions: dict[int, Source] = {}
    modules: dict[str, Module] = {name: nearest.module for name, nearest in near.before.items()}
    readers: dict[str, dict[Line, None]] = {}
    for position, fusion in enumerate(trace.bound_symbols):
        if not fusion.sym.is_fusion:
            continue
        path, inside = _path(fusion, near, compilation, forward)
        modules.update(dict.fromkeys(result_names(fusion), path))
        module = ".".join(inside) if path or compilation.parameters else None
        regions[position] = Source(module, layer_of(path), _lines(fusion, compilation.lines, saved.readers))
        if forward is None:
            _note_readers(fusion, compilation.lines, readers)
    return Sources(regions, modules, {name: tuple(lines) for name, lines in readers.items()})


def _path(fusion: Any, near: Neighbours, compilation: Compilation, forward: Sources | None) -> tuple[Module, Module]:
    """Returns two modules: one that tells the layer, and the one that all of a region is in."""
    own = own_module(fusion, compilation.parameters)
    if own:
        return own, own
    arguments = argument_names(fusion)
    before = _sort_modules((near.before.get(name) for name in arguments), latest_first=True)
    after = _sort_modules((near.after.get(name) for name in result_names(fusion)), latest_first=False)
    later, earlier = (after, before) if forward is None else (before, after)
    saved = [forward.modules[name] for name in arguments if name in forward.modules] if forward else []
    around = [*later, *earlier]
    for modules in (around, later, later[:1], earlier, earlier[:1], saved):
        shared = common_module(modules)
        if layer_of(shared) is not None:
            # What is beside one module is outside of it.
            return shared, shared[:-1] if shared in modules else shared
    return common_module(around), common_module(around)


def _sort_modules(nearest: Iterable[Near | None], *, latest_first: bool) -> list[Module]:
    """Returns the modules of different operations by their positions."""
    found = {near for near in nearest if near is not None}
    return [near.module for near in sorted(found, key=lambda near: near.position, reverse=latest_first)]


def _lines(fusion: Any, own: Mapping[str, Line], readers: Mapping[str, tuple[Line, ...]]) -> tuple[Line, ...]:
    found: dict[Line, None] = {}
    for symbol in fusion.subsymbols:
        line = _line_of(symbol, own)
        found.update(dict.fromkeys([line] if line else _operand_lines(symbol, own, readers)))
    # Stable, so that each sort stays in the order of the operations.
    return tuple(sorted(found, key=lambda line: line.library))[:MOST_LINES]


def _line_of(symbol: Any, own: Mapping[str, Line]) -> Line | None:
    return next((own[name] for name in result_names(symbol) if name in own), None)


def _operand_lines(symbol: Any, own: Mapping[str, Line], readers: Mapping[str, tuple[Line, ...]]) -> Iterator[Line]:
    """Yields the lines of the forward operations that read what this one reads, or else of those that computed it."""
    for name in argument_names(symbol):
        yield from readers.get(name) or ([own[name]] if name in own else [])


def _note_readers(fusion: Any, own: Mapping[str, Line], readers: dict[str, dict[Line, None]]) -> None:
    for symbol in fusion.subsymbols:
        line = _line_of(symbol, own)
        if line is None:
            continue
        for name in argument_names(symbol):
            lines = readers.setdefault(name, {})
            if len(lines) < MOST_LINES:
                lines[line] = None
