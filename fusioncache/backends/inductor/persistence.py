"""TorchInductor's code, compiled as ``Inductor`` compiles it, bit for bit, and given as bytes as well.

Kernels read memory as it lies there, and only ever that: what they are not for is refused, or given to ``Inductor``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusioncache.backends.api import Backend, Compiled, NotPersistable, NotPersistableNow, Run
from fusioncache.backends.inductor.artifacts import check_arguments, load_libraries, pack, read_signature, unpack
from fusioncache.backends.inductor.language import check_wrapper, define
from fusioncache.backends.inductor.package import fake, make_package
from fusioncache.ir import Graph, TensorType
from fusioncache.ir.ops import writes_in_place
from fusioncache.process import forks

_ELSEWHERE = "a tensor that is not on the CPU"


def persist(backend: Backend, graph: Graph, args: Sequence[Any], mode: str | None) -> Compiled:
    """Compiles a graph and gives the artifacts to load it from, or the reason why there are none.

    Raises:
        Exception: whatever ``backend`` raises, which compiles where code cannot be persisted.
    """
    try:
        run, artifacts = _compile(backend, graph, args, mode)
        return Compiled(run, artifacts, None)
    except NotPersistable as refusal:
        reason, lasting = str(refusal), not isinstance(refusal, NotPersistableNow)
    except Exception as error:  # a region that fails here may well work with torch.compile
        reason, lasting = f"{type(error).__name__} where its code is to be kept", False
    return Compiled(backend.compile(graph, args), None, reason, lasting)


def load(
    backend: Backend, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any], scratch: Path | None
) -> Run:
    """Makes the function of artifacts. Nothing is compiled, nothing is run.

    Raises:
        ValueError: if they are none of this format, or not for this graph and arguments of this layout.
        OSError: if there is no room for temporary files.
    """
    signature = read_signature(artifacts)
    check_arguments(signature, graph, args)
    wrapper, libraries = unpack(artifacts, signature)
    try:
        run = define(check_wrapper(wrapper.decode(), libraries), load_libraries(libraries, scratch))
    except ImportError as error:
        raise ValueError(f"a kernel that does not load: {error}") from error
    return guard_plain(run, args, lambda args: backend.compile(graph, args))


def _compile(backend: Backend, graph: Graph, args: Sequence[Any], mode: str | None) -> tuple[Run, Mapping[str, bytes]]:
    from fusioncache.backends.bound_symbols import bind, torch_function

    refuse_unpersistable(graph, args)
    bound = bind(graph)
    function = torch_function(bound.bound_symbols, bound.inputs, bound.outputs)
    package = make_package(function, fake(args), mode)
    if package.outputs != len(graph.outputs):
        raise NotPersistable("outputs of TorchInductor's own")
    run = define(package.code, package.kernels)
    run(args)  # what cannot run shows here
    artifacts = pack(package.wrapper, package.libraries, package.source, package.outputs, args)
    return guard_plain(run, args, lambda args: backend.compile(graph, args)), artifacts


def refuse_unpersistable(graph: Graph, args: Sequence[Any]) -> None:
    """Refuses what is known not to be persistable before it is compiled.

    Raises:
        NotPersistable: names it.
    """
    if (obstacle := find_obstacle(graph)) is not None:
        raise NotPersistable(obstacle)
    if any(arg.device.type != "cpu" for arg in args):
        raise NotPersistable(_ELSEWHERE)
    if (problem := find_mode() or _find_odd_tensor(args)) is not None:
        raise NotPersistableNow(problem)


def find_obstacle(graph: Graph) -> str | None:
    """Tells why nothing of a graph can be persisted, whatever its arguments; None if something might."""
    if not all(isinstance(type_, TensorType) for type_ in graph.inputs):
        return "a number among the inputs"
    # A region without inputs makes its tensors, so that results say as well where they are.
    types = (*graph.inputs, *(type_ for op in graph.ops for type_ in op.outputs))
    if any(isinstance(type_, TensorType) and type_.device != "cpu" for type_ in types):
        return _ELSEWHERE
    # What slips through is found again in what was compiled.
    return "in-place effects" if writes_in_place(graph) else None


def find_mode() -> str | None:
    """Names a mode that is on: it may make other operations of what is traced."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    return next((f"the mode {type(mode).__name__}" for mode in modes if not isinstance(mode, DeviceContext)), None)


def _find_odd_tensor(args: Sequence[Any]) -> str | None:
    import torch

    for arg in args:
        if type(arg) not in (torch.Tensor, torch.nn.Parameter):
            return f"an argument of type {type(arg).__name__}"
        if arg.layout != torch.strided or arg.is_quantized or arg.is_conj() or arg.is_neg():
            return "a tensor that is not stored plainly"
    return None


def guard_plain(run: Run, args: Sequence[Any], compile_: Callable[[Sequence[Any]], Run]) -> Run:
    """Makes a function that asks another one where arguments of the same layout are not plain tensors.

    Calls of one layout may differ in the type of tensors, and in whether values are to be negated or conjugated when
    they are read. Neither alignment, nor autograd, nor memory that arguments share matters: kernels load
    unaligned, are not dispatched, and write into nothing but their own outputs.

    Args:
        run: for plain tensors.
        args: some of them.
        compile_: makes the other function, which takes tensors of any kind. It is called when one is first needed.
    """
    import torch

    are_plain, is_neg, is_conj = (
        {torch.Tensor, torch.nn.Parameter}.issuperset,
        torch.Tensor.is_neg,
        torch.Tensor.is_conj,
    )
    complex_ = any(arg.is_complex() for arg in args)  # others are never conjugated
    otherwise: Run | None = None
    lock = forks.lock()

    def for_any(args: Sequence[Any]) -> Sequence[Any]:
        nonlocal otherwise
        with lock:
            if otherwise is None:
                otherwise = compile_(args)
        return otherwise(args)

    def for_these(args: Sequence[Any]) -> Sequence[Any]:
        # Types first: tensors of other types may answer the other questions in their own way.
        if not are_plain(map(type, args)) or any(map(is_neg, args)) or (complex_ and any(map(is_conj, args))):
            return for_any(args)
        return run(args)

    return for_these
