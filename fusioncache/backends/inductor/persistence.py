"""TorchInductor's code, compiled as ``Inductor`` compiles it, bit for bit, and given as bytes as well.

Kernels read memory as it lies there, and only ever that: what they are not for is refused, or given to ``Inductor``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusioncache.backends.api import Backend, Compiled, Progress, Run
from fusioncache.backends.inductor.artifacts import (
    check_arguments,
    find_kernel,
    load_kernels,
    load_module,
    pack,
    read_signature,
    unpack,
)
from fusioncache.backends.inductor.joined_kernels import (
    CollectedKernel,
    Kernel,
    collect_kernels,
    compile_joined,
    keep_vector_proofs,
)
from fusioncache.backends.inductor.language import check_wrapper, define
from fusioncache.backends.inductor.package import Lowered, Package, fake, lower
from fusioncache.backends.inductor.start import estimate_alone
from fusioncache.ir import Declined, Graph, Scope, TensorType, is_declined
from fusioncache.ir.ops import writes_in_place
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

_ELSEWHERE = "a tensor that is not on the CPU"


def persist(
    backend: Backend, graph: Graph, args: Sequence[Any], mode: str | None, package: Package | None = None
) -> Compiled[Run]:
    """Compiles a graph and gives the artifacts to load it from, or the reason why there are none.

    Args:
        backend: compiles where code cannot be persisted.
        graph: to be computed.
        args: that it is for.
        mode: as for ``torch.compile``.
        package: the code, if it was compiled together with that of other graphs.

    Raises:
        Exception: whatever ``backend`` raises, which compiles where code cannot be persisted.
    """
    try:
        run, artifacts = _compile(backend, graph, args, mode, package)
        return Compiled(run, artifacts, None, alone_seconds=package.alone_seconds if package else None)
    except Exception as error:  # a region that fails here may well work with torch.compile
        lasting = is_declined(error, Scope.STORING)
        is_refused = lasting or is_declined(error, Scope.STORING_NOW)
        reason = str(error) if is_refused else f"{type(error).__name__} where its code is to be stored"
    return Compiled(backend.compile(graph, args), None, reason, lasting)


def load(
    backend: Backend, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any], scratch: Path | None
) -> Run:
    """Makes the function of artifacts. Nothing is compiled, nothing is run.

    Raises:
        ValueError: if they are none of this format, or not for this graph and arguments of this layout.
        Declined: if the code is not in the language that is stored.
        OSError: if there is no room for temporary files.
    """
    signature = read_signature(artifacts)
    check_arguments(signature, graph, args)
    wrapper, libraries = unpack(artifacts, signature)
    try:
        run = define(
            check_wrapper(wrapper.decode(), dict(signature.kernels)), load_kernels(signature, libraries, scratch)
        )
    except ImportError as error:
        raise ValueError(f"a kernel that does not load: {error}") from error
    return guard_plain(run, args, lambda args: backend.compile(graph, args))


def package_together(
    graphs: Sequence[tuple[Graph, Sequence[Any]]], mode: str | None, scratch: Path | None, progress: Progress
) -> dict[int, Package]:
    """Compiles graphs, each for arguments of its own, with one run of the C++ compiler.

    Returns:
        the code of those that can be persisted, by their position.
    """
    lowered: dict[int, Lowered] = {}
    seconds: dict[int, float] = {}
    with collect_kernels():
        for number, (graph, args) in enumerate(graphs):
            progress(len(graphs) - number)
            begun = time.perf_counter()
            try:
                lowered[number] = _lower(graph, args, mode)
            except Exception as error:  # it comes again when the graph is compiled by itself
                logger.info("a region is not compiled together with others", exc_info=error)
            seconds[number] = time.perf_counter() - begun
        progress(0)
        begun = time.perf_counter()
        _compile_kernels(list(lowered.values()), scratch)
        sources = [[kernel.source for kernel in _find_collected(one)] for one in lowered.values()]
        alone = dict(zip(lowered, estimate_alone(time.perf_counter() - begun, sources), strict=True))
    return {
        number: replace(one.pack(), alone_seconds=seconds[number] + alone[number]) for number, one in lowered.items()
    }


def _compile_kernels(lowered: Sequence[Lowered], scratch: Path | None) -> None:
    """Compiles the kernels that were collected for some graphs. If that fails, TorchInductor compiles each later on."""
    kernels = [kernel for one in lowered for kernel in _find_collected(one) if kernel.compiled is None]
    if not kernels:
        return
    try:
        library, names = compile_joined(kernels)
        module = load_module(library, scratch)
        compiled = [Kernel(find_kernel(module, name), library, name) for name in names]
        keep_vector_proofs()
    except Exception as error:
        logger.info("kernels are not compiled together", exc_info=error)
        return
    for kernel, one in zip(kernels, compiled, strict=True):
        kernel.compiled = one


def _find_collected(lowered: Lowered) -> list[CollectedKernel]:
    """Returns the kernels of a graph that are not compiled one by one."""
    return [function for function in lowered.functions.values() if isinstance(function, CollectedKernel)]


def _lower(graph: Graph, args: Sequence[Any], mode: str | None) -> Lowered:
    from fusioncache.backends.bound_symbols import bind, torch_function

    refuse_unpersistable(graph, args)
    bound = bind(graph)
    function = torch_function(bound.bound_symbols, bound.inputs, bound.outputs)
    return lower(function, fake(args), mode)


def _compile(
    backend: Backend, graph: Graph, args: Sequence[Any], mode: str | None, package: Package | None
) -> tuple[Run, Mapping[str, bytes]]:
    refuse_unpersistable(graph, args)
    package = package or _lower(graph, args, mode).pack()
    if package.outputs != len(graph.outputs):
        raise Declined("outputs of TorchInductor's own", Scope.STORING)
    run = define(package.code, package.functions)
    run(args)  # what cannot run shows here
    return guard_plain(run, args, lambda args: backend.compile(graph, args)), pack(package, args)


def refuse_unpersistable(graph: Graph, args: Sequence[Any]) -> None:
    """Refuses what is known not to be persistable before it is compiled.

    Raises:
        Declined: names it.
    """
    if (obstacle := find_obstacle(graph)) is not None:
        raise Declined(obstacle, Scope.STORING)
    if any(arg.device.type != "cpu" for arg in args):
        raise Declined(_ELSEWHERE, Scope.STORING)
    if (problem := find_mode() or _find_odd_tensor(args)) is not None:
        raise Declined(problem, Scope.STORING_NOW)


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
            return "a tensor that is sparse, quantized or otherwise special"
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
