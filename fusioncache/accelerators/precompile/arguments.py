"""Makes arguments to compile a graph with: they have the layouts that a request names, and harmless values."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fusioncache.ir import Graph, NumberType, Ref, TensorType
from fusioncache.ir.ops import op_traits
from fusioncache.ir.template import ArgumentLayouts

_LEAST, _MOST = 0.5, 1.0
"""Between these a logarithm, a root, a quotient and an exponential are all finite."""


def available_device_types() -> frozenset[str]:
    """Returns the types of device that tensors can lie on here."""
    import torch

    return frozenset({"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"})


@contextmanager
def on_gpu(number: int | None) -> Iterator[None]:
    """Makes a GPU the one in use for the moment, if a number is given."""
    if number is None:
        yield
        return
    import torch

    with torch.cuda.device(number):
        yield


def gpu_in_use() -> int | None:
    """Returns the number of the GPU that this process uses; None if it uses none so far. Opens none."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else None


def make_arguments(graph: Graph, layouts: ArgumentLayouts) -> list[Any]:
    """Makes arguments of a graph that have these layouts, on the device of their type that is in use.

    Floats are random between a half and one, the same each time. Integers are 1, and 0 in a graph that looks something
    up. Numbers are 1, but for those that are sizes.

    Raises:
        Exception: whatever torch raises, such as when there is no memory for them.
    """
    sizes = _find_sizes(graph, layouts)
    integer = int(not any(op_traits(op.name).indexes for op in graph.ops))
    return [
        _make_number(type_, sizes.get(number, 1))
        if isinstance(type_, NumberType)
        else _make_tensor(type_, layout, integer, number)
        for number, (type_, layout) in enumerate(zip(graph.inputs, layouts, strict=True))
    ]


def release_memory() -> None:
    """Gives back the memory that torch holds for tensors that are gone, to other processes of the same device."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _find_sizes(graph: Graph, layouts: ArgumentLayouts) -> dict[int, int]:
    """Finds the value of each symbolic size."""
    found = {}
    for type_, layout in zip(graph.inputs, layouts, strict=True):
        if isinstance(type_, TensorType) and layout is not None:
            for size, actual in zip(type_.shape, layout[0], strict=True):
                if isinstance(size, Ref):
                    found[size.index] = actual
    return found


def _make_number(type_: NumberType, value: int) -> Any:
    return {"int": int, "float": float, "bool": bool, "complex": complex}[type_.python_type](value)


def _make_tensor(type_: TensorType, layout: tuple[Sequence[int], Sequence[int]] | None, integer: int, seed: int) -> Any:
    import torch

    from fusioncache.backends.bound_symbols import torch_dtype

    assert layout is not None
    shape, strides = layout
    # All of the memory from the first element to the last, as strides may leave gaps or be 0.
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else 0
    flat = _make_values(count, torch_dtype(type_.dtype), torch.device(type_.device), integer, seed)
    return flat.as_strided(tuple(shape), tuple(strides))


def _make_values(count: int, dtype: Any, device: Any, integer: int, seed: int) -> Any:
    import torch

    if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        return torch.full((count,), integer, dtype=dtype, device=device)
    # A generator of its own: no other random numbers change by this.
    generator = torch.Generator(device).manual_seed(seed)
    random = torch.rand(count, generator=generator, device=device) * (_MOST - _LEAST) + _LEAST
    return random > (_LEAST + _MOST) / 2 if dtype is torch.bool else random.to(dtype)
