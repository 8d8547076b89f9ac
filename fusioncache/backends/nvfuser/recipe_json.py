"""Recipes as JSON, and back. The reader trusts nothing: whatever is not a recipe of this version is refused."""

from __future__ import annotations

from dataclasses import asdict, astuple
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

_OUTPUT_KINDS: dict[type[Output], str] = {Fresh: "fresh", View: "view", Duplicate: "again"}


def encode(recipe: Recipe) -> bytes:
    """Returns a recipe as bytes, which are the same for equal recipes."""
    written = {
        "allocations": recipe.allocations,
        "inputs": list(map(astuple, recipe.inputs)),
        "outputs": list(map(_write_output, recipe.outputs)),
        "steps": list(map(_write_step, recipe.steps)),
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


def _write_output(output: Output) -> list[Any]:
    return [_OUTPUT_KINDS[type(output)], *astuple(output)]


def _write_step(step: Step) -> dict[str, Any]:
    if isinstance(step, Fill):
        return {"fill": astuple(step)}
    parameters = [parameter.hex() for parameter in step.parameters]
    pointers = list(map(astuple, step.pointers))
    return dict(sorted({**asdict(step), "parameters": parameters, "pointers": pointers}.items()))


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
