"""Recipes as JSON, and back. The reader trusts nothing: whatever is not a recipe of this version is refused."""

from __future__ import annotations

from typing import Any

from fusioncache.backends.nvfuser.recipe import (
    VERSION,
    Duplicate,
    Fill,
    Fresh,
    Input,
    Launch,
    Layout,
    Output,
    Pointer,
    Recipe,
    Step,
    View,
)
from fusioncache.ir import strict_json
from fusioncache.ir.strict_json import Value


def encode(recipe: Recipe) -> bytes:
    """Returns a recipe as bytes, which are the same for equal recipes."""
    written = {
        "allocations": list(recipe.allocations),
        "inputs": [[_write_layout(input_.layout), input_.alignment] for input_ in recipe.inputs],
        "outputs": [_write_output(output) for output in recipe.outputs],
        "steps": [_write_step(step) for step in recipe.steps],
        "version": VERSION,
        "widest": recipe.widest,
    }
    return strict_json.encode(written)


def decode(data: bytes) -> Recipe:
    """Returns the recipe that these bytes hold.

    Raises:
        ValueError: if they hold no recipe of this version, or anything in it is out of range.
    """
    written = strict_json.decode(data, "recipe", version=VERSION)
    widest, inputs, allocations, outputs, steps = written.fields("widest", "inputs", "allocations", "outputs", "steps")
    return Recipe(
        tuple(map(_read_input, inputs.items())),
        allocations.integers(),
        tuple(map(_read_output, outputs.items())),
        tuple(map(_read_step, steps.items())),
        widest.integer(),
    )


def _write_layout(layout: Layout) -> list[Any]:
    return [layout.dtype, list(layout.shape), list(layout.strides)]


def _write_output(output: Output) -> list[Any]:
    if isinstance(output, Duplicate):
        return ["again", output.output]
    if isinstance(output, View):
        return ["view", _write_layout(output.layout), output.input, output.offset, output.itself]
    return ["fresh", _write_layout(output.layout), output.allocation, output.offset]


def _write_step(step: Step) -> dict[str, Any]:
    if isinstance(step, Fill):
        return {"fill": [step.buffer, step.delta, step.size, step.value]}
    return {
        "block": list(step.block),
        "cooperative": step.cooperative,
        "cubin": step.cubin,
        "function": step.function,
        "grid": list(step.grid),
        "most_shared": step.most_shared,
        "parameters": [parameter.hex() for parameter in step.parameters],
        "pointers": [[p.parameter, p.offset, p.buffer, p.delta] for p in step.pointers],
        "shared": step.shared,
    }


def _read_input(written: Value) -> Input:
    layout, alignment = written.items(2)
    return Input(_read_layout(layout), alignment.integer())


def _read_layout(written: Value) -> Layout:
    dtype, shape, strides = written.items(3)
    return Layout(dtype.text(), shape.integers(), strides.integers())


def _read_output(written: Value) -> Output:
    kind, *rest = written.items()
    if kind.content == "again":
        (output,) = rest
        return Duplicate(output.integer())
    if kind.content == "view":
        layout, input_, offset, itself = rest
        return View(_read_layout(layout), input_.integer(), offset.integer(), itself.boolean())
    if kind.content == "fresh":
        layout, allocation, offset = rest
        return Fresh(_read_layout(layout), allocation.integer(), offset.integer())
    raise written.error("an output of a known kind")


def _read_step(written: Value) -> Step:
    if written.has("fill"):
        (fill,) = written.fields("fill")
        return Fill(*fill.integers(count=4))
    cubin, function, grid, block, shared, most_shared, cooperative, parameters, pointers = written.fields(
        *("cubin", "function", "grid", "block", "shared", "most_shared", "cooperative", "parameters", "pointers")
    )
    return Launch(
        cubin.text(),
        function.text(),
        _read_triple(grid),
        _read_triple(block),
        shared.integer(),
        most_shared.integer(),
        cooperative.boolean(),
        tuple(bytes.fromhex(parameter.text()) for parameter in parameters.items()),
        tuple(Pointer(*pointer.integers(count=4)) for pointer in pointers.items()),
    )


def _read_triple(written: Value) -> tuple[int, int, int]:
    x, y, z = written.integers(count=3)
    return x, y, z
