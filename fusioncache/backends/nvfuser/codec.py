"""Recipes as JSON, and back. What is read is taken for granted in nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fusioncache.backends.nvfuser.parts import (
    Again,
    Fill,
    Fresh,
    Input,
    Launch,
    Layout,
    Output,
    Pointer,
    Step,
    View,
)
from fusioncache.backends.nvfuser.recipe import VERSION, Recipe


def encoded(recipe: Recipe) -> bytes:
    """A recipe as bytes: the same for equal recipes."""
    written = {
        "version": VERSION,
        "widest": recipe.widest,
        "inputs": [[_layout(input_.layout), input_.alignment] for input_ in recipe.inputs],
        "allocations": list(recipe.allocations),
        "outputs": [_output(output) for output in recipe.outputs],
        "steps": [_step(step) for step in recipe.steps],
    }
    return json.dumps(written, separators=(",", ":"), sort_keys=True).encode()


def decoded(data: bytes) -> Recipe:
    """The recipe that these bytes say.

    Raises:
        ValueError: if they are none of this version, or anything in it is out of range.
    """
    try:
        written = json.loads(data.decode(), object_pairs_hook=_once)
        version, widest, inputs, allocations, outputs, steps = _fields(
            written, "version", "widest", "inputs", "allocations", "outputs", "steps"
        )
        if type(version) is not int or version != VERSION:
            raise ValueError(f"a recipe of version {version!r}")
        return Recipe(
            _each(inputs, lambda item: Input(_read_layout(item[0]), *_row(item, 2)[1:])),
            tuple(_row(allocations)),
            _each(outputs, _read_output),
            _each(steps, _read_step),
            widest,
        )
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"no recipe: {error}") from error


def _layout(layout: Layout) -> list[Any]:
    return [layout.dtype, list(layout.shape), list(layout.strides)]


def _output(output: Output) -> list[Any]:
    if isinstance(output, Again):
        return ["again", output.output]
    if isinstance(output, View):
        return ["view", _layout(output.layout), output.input, output.offset, output.itself]
    return ["fresh", _layout(output.layout), output.allocation, output.offset]


def _step(step: Step) -> dict[str, Any]:
    if isinstance(step, Fill):
        return {"fill": [step.buffer, step.delta, step.size, step.value]}
    return {
        "cubin": step.cubin,
        "function": step.function,
        "grid": list(step.grid),
        "block": list(step.block),
        "shared": step.shared,
        "most_shared": step.most_shared,
        "cooperative": step.cooperative,
        "parameters": [parameter.hex() for parameter in step.parameters],
        "pointers": [[p.parameter, p.offset, p.buffer, p.delta] for p in step.pointers],
    }


def _read_layout(written: Any) -> Layout:
    dtype, shape, strides = _row(written, 3)
    return Layout(dtype, tuple(_row(shape)), tuple(_row(strides)))


def _read_output(written: Any) -> Output:
    kind, *rest = _row(written)
    if kind == "again":
        return Again(*_row(rest, 1))
    if kind == "view":
        return View(_read_layout(rest[0]), *_row(rest, 4)[1:])
    if kind == "fresh":
        return Fresh(_read_layout(rest[0]), *_row(rest, 3)[1:])
    raise ValueError("an output of no known kind")


def _read_step(written: Any) -> Step:
    if isinstance(written, dict) and "fill" in written:
        (fill,) = _fields(written, "fill")
        return Fill(*_row(fill, 4))
    cubin, function, grid, block, shared, most_shared, cooperative, parameters, pointers = _fields(
        written,
        *("cubin", "function", "grid", "block", "shared", "most_shared", "cooperative", "parameters", "pointers"),
    )
    return Launch(
        cubin,
        function,
        _three(grid),
        _three(block),
        shared,
        most_shared,
        cooperative,
        _each(parameters, bytes.fromhex),
        _each(pointers, lambda row: Pointer(*_row(row, 4))),
    )


def _three(written: Any) -> tuple[int, int, int]:
    x, y, z = _row(written, 3)
    return x, y, z


def _each[T](written: Any, read: Callable[[Any], T]) -> tuple[T, ...]:
    return tuple(read(item) for item in _row(written))


def _row(written: Any, length: int | None = None) -> list[Any]:
    if type(written) is not list or (length is not None and len(written) != length):
        raise ValueError("a recipe with something else than a list")
    return written


def _fields(written: Any, *names: str) -> list[Any]:
    if type(written) is not dict or set(written) != set(names):
        raise ValueError("a recipe with other fields")
    return [written[name] for name in names]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a recipe with a field twice")
    return dict(pairs)
