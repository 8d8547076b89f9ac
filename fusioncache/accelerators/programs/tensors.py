"""Tensors: what a trace can depend on besides their numbers, and which of them share memory.

Their numbers are not described: what Thunder finds in a global, a list, a closure cell or an attribute becomes an input
of the program, which its prologue gets from there again. Whoever reads numbers while tracing makes a program that is
not kept, and it is the recorder that sees this.

All is asked of the class in C below ``torch.Tensor``, so that nothing runs that a subclass overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusioncache.accelerators.programs.introspection import by_identity, mro_of, namespace_of
from fusioncache.accelerators.programs.literals import write_class_name
from fusioncache.accelerators.programs.writer import Handler, Writer
from fusioncache.ir.errors import Declined, Scope

_BASE = torch._C.TensorBase


def _field(name: str) -> Callable[[torch.Tensor], Any]:
    return vars(_BASE)[name].__get__


_attributes_of: Callable[[torch.Tensor], dict[str, object]] = vars(torch.Tensor)["__dict__"].__get__
_dtype, _shape, _device, _layout = map(_field, ("dtype", "shape", "device", "layout"))
_requires_grad, _is_leaf = map(_field, ("requires_grad", "is_leaf"))
_is_nested, _is_quantized = map(_field, ("is_nested", "is_quantized"))
_FLAGS: tuple[tuple[str, Callable[[torch.Tensor], bool]], ...] = (
    ("requires_grad", _requires_grad),
    ("conjugated", _BASE.is_conj),
    ("negated", _BASE.is_neg),
    ("inference", _BASE.is_inference),
)
has_names: Callable[[torch.Tensor], bool] = getattr(_BASE, "has_names", lambda tensor: False)
"""Whether dimensions have names. Torch 2.13 has no such tensors."""
_HOOKS = (
    ("hooks", _field("_backward_hooks")),
    ("hooks after accumulation", _field("_post_accumulate_grad_hooks")),
)


def write_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor without its numbers.

    Raises:
        Declined: if it is a sparse, nested or quantized one, which say more than strides do.
    """
    if not writer.enter(tensor, lasting=True):
        return
    if _layout(tensor) is not torch.strided or _is_nested(tensor) or _is_quantized(tensor):
        raise Declined(
            "a sparse, nested or quantized tensor has no value to compare: it is more than its strides", Scope.VALUE
        )
    parts = writer.parts
    writer.write_class(type(tensor))
    parts.append(f" {_dtype(tensor)} {write_layout(tensor)} {_device(tensor)}")
    _write_flags(writer, tensor)
    _write_storage(writer, tensor)
    attributes = _attributes_of(tensor)
    if attributes:
        parts.append(" attributes ")
        writer.write(attributes)


def write_layout(tensor: torch.Tensor) -> str:
    """Returns the shape of a tensor, its strides, and where in its storage it begins, if not at the start."""
    offset = _BASE.storage_offset(tensor)
    return f"{tuple(_shape(tensor))} {_BASE.stride(tensor)}" + (f" offset {offset}" if offset else "")


def _write_flags(writer: Writer, tensor: torch.Tensor) -> None:
    parts = writer.parts
    for name, is_set in _FLAGS:
        if is_set(tensor):
            parts.append(f" {name}")
    if not _is_leaf(tensor):
        parts.append(" computed")
    if has_names(tensor):
        parts.append(f" names {_field('names')(tensor)}")
    for name, hooks_of in _HOOKS:
        hooks = hooks_of(tensor)
        if hooks:
            parts.append(f" {name} ")
            writer.write(list(hooks.values()))


def _write_storage(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes which tensor was met first in the same storage, if one was."""
    storage = _BASE.untyped_storage(tensor)
    first = writer.memory.storages.get(storage._cdata)
    if first is None:
        writer.note(writer.memory.storages, storage._cdata, (writer.memory.names[id(tensor)], storage))
    else:
        writer.parts.append(f" in @{first[0]}")


def write_foreign_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor of a subclass.

    Raises:
        Declined: if it has a ``__torch_dispatch__``, behind which there may be other tensors and state.
    """
    cls = type(tensor)
    for base in mro_of(cls):
        if base is torch.Tensor:
            break
        if "__torch_dispatch__" in namespace_of(base):
            raise Declined(f"a {write_class_name(cls)} has no value to compare: it may hold other tensors", Scope.VALUE)
    write_tensor(writer, tensor)


TENSORS: dict[int, Handler] = by_identity((torch.Tensor, write_tensor), (torch.nn.Parameter, write_tensor))
"""What writes each kind of tensor, by the identity of its type."""
