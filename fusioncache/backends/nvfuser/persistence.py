"""Persists what nvFuser compiled, so that another process launches it without nvFuser.

What is persisted was tried: a launch from the very bytes that are stored has to give nvFuser's own bits, for other
values at other addresses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fusioncache.backends.api import Compiled, Run
from fusioncache.backends.bound_symbols import find_fixed_gpu
from fusioncache.backends.nvfuser.capture import Capture, capture
from fusioncache.backends.nvfuser.definition import VERSION as DEFINITION_VERSION
from fusioncache.backends.nvfuser.definition import CompiledDefinition, Switches, compile_definition
from fusioncache.backends.nvfuser.driver import DriverError, driver
from fusioncache.backends.nvfuser.kernel_database import OPTION, kernel_database, read_cubin
from fusioncache.backends.nvfuser.recipe import CUBIN, RECIPE, SOURCE, VERSION, Launch
from fusioncache.backends.nvfuser.recipe_json import decode, encode
from fusioncache.backends.nvfuser.stored_run import StoredRun, check_arguments
from fusioncache.backends.nvfuser.verification import copy_tensor, roll_tensor, verify
from fusioncache.ir import Declined, Graph, NumberType, Scope, is_declined
from fusioncache.ir.ops import op_traits, writes_in_place
from fusioncache.process import forks
from fusioncache.process.warning import warn_once

logger = logging.getLogger("fusioncache")

_DESCRIPTORS, _RANDOM_CODE = "TensorMap", "philox"
"""Parts of the CUDA of kernels that take descriptors of tensors, or draw random numbers."""


def artifact_environment() -> Mapping[str, str] | None:
    """Returns what artifacts depend on: the device that kernels are scheduled for, the driver, versions.

    Without ``cuda.bindings`` there is nothing to look into CUDA graphs with, and None is returned.
    """
    try:
        version = driver().version()
    except ImportError as error:
        warn_once(f"nvFuser's kernels are not stored, as there is no cuda.bindings ({error}): install cuda-bindings")
        return None
    return {
        "device": "\n".join(list_device_kinds()),
        "driver": str(version),
        "definition": str(DEFINITION_VERSION),
        "recipe": str(VERSION),
    }


def list_device_kinds() -> tuple[str, ...]:
    """Returns what the GPUs of this process are, each kind once: name, multiprocessors, architecture."""
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    kinds = {f"{gpu.name}, {gpu.multi_processor_count} SMs, {gpu.major}.{gpu.minor}" for gpu in found}
    return tuple(sorted(kinds))


def persist(graph: Graph, args: Sequence[Any], switches: Switches) -> Compiled:
    """Compiles with nvFuser, and gives what launches the same kernels in another process."""
    try:
        check_persistable(graph, args)
    except Declined as refusal:
        refusal.require(Scope.STORING, Scope.STORING_NOW)
        return _refuse(compile_definition(graph, args, switches), refusal)
    database, start = kernel_database(), time.perf_counter()
    compiled = database.compile(switches, lambda: compile_definition(graph, args, switches, (OPTION,)))
    seconds = time.perf_counter() - start
    try:
        artifacts, launched = _make_artifacts(compiled, find_device(graph, args), args, switches)
        return Compiled(compiled.keep_if_captured(), artifacts, None, exact=launched, alone_seconds=seconds)
    except Exception as error:  # nvFuser's own function works, whatever this is
        if is_declined(error, Scope.STORING, Scope.STORING_NOW):
            return _refuse(compiled, error)
        logger.info("an executable is not stored", exc_info=error)
        reason = f"keeping failed: {type(error).__name__}"
        return Compiled(compiled.keep_if_captured(), None, reason, lasting=False)


def _refuse(compiled: CompiledDefinition, refusal: Declined) -> Compiled:
    return Compiled(compiled.keep_if_captured(), None, refusal.reason, lasting=refusal.scope is Scope.STORING)


def load(
    artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any], compile_: Callable[[Graph, Sequence[Any]], Run]
) -> Run:
    """Loads the function of these artifacts on the arguments' device. ``compile_`` is for what they are not for.

    Raises:
        ValueError: if the artifacts are damaged, or for other arguments.
    """
    if RECIPE not in artifacts:
        raise ValueError("artifacts without a recipe")
    recipe = decode(artifacts[RECIPE])
    check_arguments(recipe, args)
    device = find_device(graph, args)
    if device is None:
        raise ValueError("artifacts of a region that runs on no GPU")
    stored = StoredRun(recipe, artifacts, CompilingRun(compile_, graph), driver(), device)
    try:
        with torch.cuda.device(device):
            stored.load(device)
    except DriverError as error:
        raise ValueError(f"a cubin that does not load: {error}") from error
    return stored.run


class CompilingRun:
    """Computes what a recipe is not for: nvFuser compiles the graph when it is first needed."""

    def __init__(self, compile_: Callable[[Graph, Sequence[Any]], Run], graph: Graph):
        self._compile = compile_
        self._graph = graph
        self._lock = forks.lock()
        self._run: Run | None = None

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        """Runs what nvFuser compiled for the first arguments."""
        with self._lock:
            if self._run is None:
                # To compile runs it once, so that what writes into its arguments is compiled with copies.
                spare = [copy_tensor(arg) for arg in args] if writes_in_place(self._graph) else args
                self._run = self._compile(self._graph, spare)
        return self._run(args)


def check_persistable(graph: Graph, args: Sequence[Any]) -> None:
    """Checks a graph before nvFuser compiles it.

    Raises:
        Declined: if it is known that nothing of it can be persisted. The message says why.
    """
    obstacle = find_obstacle(graph)
    if obstacle:
        raise Declined(obstacle, Scope.STORING)
    if not all(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        raise Declined("an input that is no CUDA tensor", Scope.STORING)
    if len(list_device_kinds()) > 1:
        # The key does not say on which of them a region runs, and kernels are scheduled for one.
        raise Declined("GPUs of several kinds in one process", Scope.STORING)
    check_tensors(args)


def find_obstacle(graph: Graph) -> str | None:
    """Tells why nothing of a graph can be persisted, whatever its arguments; None if something might."""
    if any(isinstance(type_, NumberType) for type_ in graph.inputs):
        return "a number among the inputs"
    if graph.sizes:
        return "symbolic sizes"
    if any(op_traits(op.name).random for op in graph.ops):
        return "random numbers"
    return "no input or constant that names the GPU" if not graph.inputs and find_fixed_gpu(graph) is None else None


def find_device(graph: Graph, args: Sequence[Any]) -> int | None:
    """Returns the number of the GPU that a graph runs on: that of its arguments, or, without any, the one it names."""
    return args[0].get_device() if args else find_fixed_gpu(graph)


def check_tensors(args: Sequence[Any]) -> None:
    """Checks arguments that are tensors.

    Raises:
        Declined: if one of them is of a kind that another call of the same graph may do without.
    """
    if len({arg.get_device() for arg in args}) > 1:
        raise Declined("inputs on several devices", Scope.STORING_NOW)
    if not all(arg.layout == torch.strided and type(arg.data) is torch.Tensor for arg in args):
        raise Declined("an input that is no plain tensor", Scope.STORING_NOW)
    if any(arg.is_conj() or arg.is_neg() for arg in args):
        raise Declined("an input that is to be conjugated or negated when it is read", Scope.STORING_NOW)


def _make_artifacts(
    compiled: CompiledDefinition, device: int | None, args: Sequence[Any], switches: Switches
) -> tuple[Mapping[str, bytes], Run]:
    """Returns what is to be stored, and what launches it here: nvFuser looks at each argument in every call."""
    if compiled.device not in (None, device):
        raise Declined("a definition that is written for another device", Scope.STORING_NOW)
    with torch.cuda.device(device), torch.no_grad():
        if torch.cuda.is_current_stream_capturing():
            raise Declined("a CUDA graph is being captured", Scope.STORING_NOW)
        own, others = [copy_tensor(arg) for arg in args], [roll_tensor(arg) for arg in args]
        compiled.run(own)  # so that nothing is left to prepare for tensors that lie as these do
        captured = capture(driver(), compiled.run, own, others)
        artifacts = pack(captured, compiled, own, switches)
        verified = verify(artifacts, captured, compiled.run, others, driver())
    return artifacts, verified.launching(compiled.keep_if_captured()).run


def pack(captured: Capture, compiled: CompiledDefinition, args: Sequence[Any], switches: Switches) -> dict[str, bytes]:
    """Returns the recipe, the cubin of each kernel by a name that says nothing of this process, and the CUDA of all.

    Raises:
        Declined: if nvFuser's database does not have the kernels, or they are of a kind that is not supported.
    """
    recipe, code = captured.recipe, _read_code(compiled, args)
    cubins = iter(_read_cubins([step.function for step in recipe.launches], code, switches))
    names: dict[bytes, str] = {}
    steps = tuple(
        replace(step, cubin=names.setdefault(next(cubins), f"{len(names)}{CUBIN}"))
        if isinstance(step, Launch)
        else step
        for step in recipe.steps
    )
    source = {SOURCE: code.encode(errors="replace")} if code else {}
    return {RECIPE: encode(replace(recipe, steps=steps)), **{name: cubin for cubin, name in names.items()}, **source}


def _read_code(compiled: CompiledDefinition, args: Sequence[Any]) -> str:
    """Returns the CUDA of the kernels, without nvFuser's own functions that are put before each."""
    device = torch.cuda.current_device() if compiled.device is None else compiled.device
    code = compiled.definition.fec.get_cuda_kernel(list(args), intrinsic_code=False, device=device)
    if _DESCRIPTORS in code:
        raise Declined("a kernel that takes descriptors of tensors", Scope.STORING)
    if _RANDOM_CODE in code:
        raise Declined("a kernel that draws random numbers", Scope.STORING)
    return code


def _read_cubins(functions: Sequence[str], code: str, switches: Switches) -> list[bytes]:
    if not functions and not code:
        return []
    database = kernel_database()
    if code:
        database.note_compiled()
    return [read_cubin(row) for row in database.rows(functions, code, switches)]
