"""Tensors: what a trace can depend on besides their numbers, and which of them share memory.

Their numbers are not described: a trace gets them as inputs. Whoever reads a tensor's numbers while tracing makes a
program that cannot be kept, and it is the recorder that sees this.
"""

from __future__ import annotations

import torch

from fusioncache.program.literals import write_class_name
from fusioncache.program.writer import Handler, NoValue, Writer

_KNOWN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_attributes_of = torch.Tensor.__dict__["__dict__"].__get__


def write_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor without its numbers.

    Raises:
        NoValue: if it is a sparse, nested or quantized one, which say more than strides do.
    """
    if not writer.enter(tensor, lasting=True):
        return
    parts = writer.parts
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise NoValue("a sparse, nested or quantized tensor is more than its strides")
    writer.write_class(type(tensor))
    parts.append(f" {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device}")
    _write_flags(writer, tensor)
    storage = tensor.untyped_storage()._cdata
    if tensor.storage_offset():
        parts.append(f" offset {tensor.storage_offset()}")
    first = writer.memory.storages.get(storage)
    if first is not None:
        parts.append(f" in @{first}")
    else:
        writer.note(writer.memory.storages, storage, writer.memory.names[id(tensor)])
    attributes = _attributes_of(tensor)
    if attributes:
        parts.append(" attributes ")
        writer.write(attributes)


def _write_flags(writer: Writer, tensor: torch.Tensor) -> None:
    parts = writer.parts
    if tensor.requires_grad:
        parts.append(" requires_grad")
    if not tensor.is_leaf:
        parts.append(f" of {type(tensor.grad_fn).__name__}")
    for name, is_set in (
        ("conjugated", tensor.is_conj()),
        ("negated", tensor.is_neg()),
        ("inference", tensor.is_inference()),
    ):
        if is_set:
            parts.append(f" {name}")
    if tensor.has_names():
        parts.append(f" names {tensor.names}")
    for name, hooks in (
        ("hooks", tensor._backward_hooks),
        ("hooks after accumulation", tensor._post_accumulate_grad_hooks),
    ):
        if hooks:
            parts.append(f" {name} ")
            writer.write(list(hooks.values()))


def write_foreign_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor of a subclass, without calling what the subclass overrides.

    Raises:
        NoValue: if it has a ``__torch_dispatch__``, behind which there may be other tensors and state.
    """
    cls = type(tensor)
    for base in type.__dict__["__mro__"].__get__(cls):
        if base is torch.Tensor:
            break
        if "__torch_dispatch__" in type.__dict__["__dict__"].__get__(base):
            raise NoValue(f"the state of a {write_class_name(cls)} is behind its __torch_dispatch__")
    with torch._C.DisableTorchFunctionSubclass():
        write_tensor(writer, tensor)


TENSORS: dict[int, Handler] = {id(kind): write_tensor for kind in _KNOWN}
"""What writes each kind of tensor, by the identity of its type."""
