"""What nvFuser would be given for a graph, as Python. Needs nvFuser, and no GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fusioncache.ir import Arg, Const, Graph, Op, TensorType, ValueType


def definition_text(graph: Graph) -> str:
    """The function that defines a graph for nvFuser, for contiguous inputs. One for the CPU is taken to the GPU.

    Raises:
        ValueError: if nvFuser is not installed, or has no translation for it; the message says what to do.
    """
    from fusioncache.backends.nvfuser.backend import SEEN_WORKING, contiguous, define, nvfuser_executor

    if importlib.util.find_spec("nvfuser_direct") is None:
        raise ValueError(f"nvFuser writes the definition, and it is not installed. Seen working: {SEEN_WORKING}")
    graph = graph if any(_device(type_) == "cuda" for type_ in graph.inputs) else _on_gpu(graph)
    try:
        with _any_gpu():
            nvfuser_executor()
            return repr(define(graph, contiguous(graph))).strip() + "\n"
    except Exception as error:  # whatever Thunder or nvFuser raise
        said = str(error).partition("\n")[0]
        raise ValueError(f"nvFuser has no definition for this template ({type(error).__name__}: {said})") from error


def _device(type_: ValueType) -> str | None:
    return type_.device if isinstance(type_, TensorType) else None


def _on_gpu(graph: Graph) -> Graph:
    ops = tuple(
        Op(
            op.name,
            tuple(map(_arg_on_gpu, op.args)),
            tuple(type_ and _type_on_gpu(type_) for type_ in op.outputs),
            tuple((name, _arg_on_gpu(arg)) for name, arg in op.kwargs),
        )
        for op in graph.ops
    )
    return replace(graph, inputs=tuple(map(_type_on_gpu, graph.inputs)), ops=ops)


def _type_on_gpu(type_: ValueType) -> ValueType:
    return replace(type_, device="cuda") if isinstance(type_, TensorType) else type_


def _arg_on_gpu(arg: Arg) -> Arg:
    if isinstance(arg, tuple):
        return tuple(map(_arg_on_gpu, arg))
    return replace(arg, text="cuda:0") if isinstance(arg, Const) and arg.kind == "device" else arg


@contextmanager
def _any_gpu() -> Iterator[None]:
    """Lets Thunder's translators be imported on a machine without a GPU: here they only write a text."""
    import torch

    if torch.cuda.is_available():
        yield
        return
    pretended = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda *_: (9, 0),
    }
    real = {name: getattr(torch.cuda, name) for name in pretended}
    try:
        for name, function in pretended.items():
            setattr(torch.cuda, name, function)
        yield
    finally:
        for name, function in real.items():
            setattr(torch.cuda, name, function)
