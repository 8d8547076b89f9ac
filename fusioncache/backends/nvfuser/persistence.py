"""Stores nvFuser's compiled kernels, so that another process launches them without nvFuser.

Artifacts are verified first: a launch from exactly the bytes to be stored must give nvFuser's bits, for other values at
other addresses.

The cubins come from nvFuser's database of compiled kernels, in a directory of this process. nvFuser opens its database
once per process: at the first kernel that it compiles with the option on, in the current directory for temporary files.
It writes the code and the cubin of each kernel, and a row with the kernel's name.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fusioncache.backends.api import Compiled, Run, compile_when_called
from fusioncache.backends.bound_symbols import find_fixed_gpu
from fusioncache.backends.nvfuser.capture import Capture, capture, shorten
from fusioncache.backends.nvfuser.definition import VERSION as DEFINITION_VERSION
from fusioncache.backends.nvfuser.definition import CompiledDefinition, Switches, compile_definition, define_for
from fusioncache.backends.nvfuser.driver import Driver, DriverError, driver
from fusioncache.backends.nvfuser.recipe import CUBIN, RECIPE, SOURCE, VERSION, Launch, decode, encode
from fusioncache.backends.nvfuser.stored_run import StoredRun, check_arguments
from fusioncache.ir import Declined, Graph, NumberType, Scope, is_declined
from fusioncache.ir.ops import op_traits, writes_in_place
from fusioncache.ir.template import count_elements
from fusioncache.process import forks
from fusioncache.process.warning import logger, warn_once

OPTION = "kernel_db"
"""The nvFuser option that enables its database."""

_FOLDER, _TABLE = "nvfuser_kernel_db", "db.csv"
_ROW = re.compile(r"([^,]+),([^,]*),(kernel_\d+\.cu),(kernel_\d+\.cubin)")
_DIRECTORY_VARIABLE = "TMPDIR"
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel: its function's name, its CUDA, the file of its cubin, and the options that it was compiled with."""

    name: str
    code: str
    cubin: Path
    options: Switches


class KernelDatabase:
    """nvFuser's database in this process. Only one compile runs at a time, so that each row belongs to a known one."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._directory: Path | None = None
        self._process = os.getpid()
        self._opened = False
        self._lost = False
        self._read = 0
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._replaced: tuple[str | None] | None = None
        forks.register(self)

    def compile[T](self, options: Switches, compile_: Callable[[], T]) -> T:
        """Calls ``compile_``, which has ``OPTION`` on beside these options, and reads the rows that it adds."""
        with self._lock:
            try:
                if self._opened or self._lost:
                    return compile_()
                with self._open():
                    return compile_()
            finally:
                self._read_rows(options)

    def rows(self, names: Sequence[str], code: str, options: Switches) -> tuple[Row, ...]:
        """Returns the row of each kernel of a run that was compiled: see ``match_rows``.

        Raises:
            Declined: if not exactly one row fits each, or the database is not that of this process.
        """
        with self._lock:
            if code:  # kernels were compiled: if the database is not open by now, nvFuser opened it elsewhere
                self._lost = not self._opened
            if not self._opened or self._process != os.getpid():
                raise Declined("nvFuser's kernel database was opened by another library", Scope.STORING_NOW)
            return match_rows(self._rows, names, code, options)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Replaces the directory for temporary files in the body. It applies to all threads."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="fusioncache-kernels-"))
            atexit.register(_remove, self._directory, self._process)
        self._replaced = (os.environ.get(_DIRECTORY_VARIABLE),)
        os.environ[_DIRECTORY_VARIABLE] = str(self._directory)
        try:
            yield
        finally:
            self.after_fork()
            self._opened = (self._directory / _FOLDER / _TABLE).is_file()

    def after_fork(self) -> None:
        """Restores the directory for temporary files. A forked child needs this if another thread was in ``_open``."""
        replaced, self._replaced = self._replaced, None
        if replaced is None:
            return
        (before,) = replaced
        if before is None:
            os.environ.pop(_DIRECTORY_VARIABLE, None)
        else:
            os.environ[_DIRECTORY_VARIABLE] = before

    def _read_rows(self, options: Switches) -> None:
        if not self._opened or self._directory is None:
            return
        folder = self._directory / _FOLDER
        lines = (folder / _TABLE).read_text().split("\n")[:-1]
        for line in lines[max(self._read, 1) :]:
            match = _ROW.fullmatch(line)
            if match is not None:
                row = Row(match[1], (folder / match[3]).read_text(), folder / match[4], options)
                self._rows[row.name].append(row)
        self._read = len(lines)


def match_rows(
    known: Mapping[str, Sequence[Row]], names: Sequence[str], code: str, options: Switches
) -> tuple[Row, ...]:
    """Returns the row for each kernel of a run. The code of these rows must be exactly that of the run.

    ``known`` contains the database's rows by kernel name. ``names`` are the run's kernels in the order of launches,
    ``code`` is their CUDA as nvFuser returns it, and ``options`` are those of its compilation.

    Raises:
        Declined: if not exactly one row fits each, or there is other code.
    """
    if len(set(names)) != len(names):
        raise Declined("two kernels of one name", Scope.STORING)
    found = []
    for name in names:
        rows = [row for row in known.get(name, ()) if row.code in code]
        if len(rows) != 1:
            raise Declined(f"{len(rows)} rows of nvFuser's kernel database for one kernel", Scope.STORING_NOW)
        if rows[0].options != options:
            # The database identifies kernels by code alone, so it lacks the kernel compiled with these options.
            raise Declined("a kernel that is known with other options of nvFuser", Scope.STORING_NOW)
        found.append(rows[0])
    ordered = sorted(found, key=lambda row: code.index(row.code))
    if "\n".join(row.code for row in ordered) != code:
        raise Declined("code of kernels that were not launched", Scope.STORING)
    return tuple(found)


def read_cubin(row: Row) -> bytes:
    """Returns the cubin of a row.

    Raises:
        Declined: if it is not a cubin.
    """
    image = row.cubin.read_bytes()
    if not image.startswith(_ELF):
        raise Declined("a kernel that is not compiled to the end", Scope.STORING)
    return image


@cache
def kernel_database() -> KernelDatabase:
    """Returns the database of this process."""
    return KernelDatabase()


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        shutil.rmtree(directory, ignore_errors=True)


_COPY_ALIGNMENT = 512
"""Copies are as far off a multiple of this many bytes as their originals. Torch's blocks start at a multiple."""


def verify(
    artifacts: Mapping[str, bytes], capture: Capture, run: Run, args: Sequence[Any], driver: Driver
) -> StoredRun:
    """Launches from the bytes to be stored, and compares all outputs and all inputs with those of ``run``.

    The arguments are on the current device. They differ from those that nvFuser compiled for, have the same alignments,
    and may be written into.

    Returns:
        The launched run, which fills new memory first.

    Raises:
        Declined: if there is any difference.
    """
    recipe = decode(artifacts[RECIPE])
    if recipe.inputs != capture.recipe.inputs or recipe.outputs != capture.recipe.outputs:
        raise Declined("a recipe that reads otherwise than it was written", Scope.STORING)
    check_arguments(recipe, args)
    device = torch.cuda.current_device()
    stored = StoredRun(recipe, artifacts, refuse_arguments, driver, device, poison=True)
    steps = stored.load(device)
    for ours, theirs in zip(steps.functions, capture.functions, strict=True):
        if driver.describe_code(ours) != driver.describe_code(theirs):
            raise Declined(f"a cubin that is not that of {shorten(driver.function_name(theirs))}", Scope.STORING)
    compare(stored, run, args)
    return stored


def compare(stored: StoredRun, run: Run, args: Sequence[Any]) -> None:
    """Compares all outputs and all inputs of a launch, which fills new memory first, with those of ``run``.

    Raises:
        Declined: if there is any difference.
    """
    again = [copy_tensor(arg) for arg in args]
    expected = run(args)
    outputs = stored.run(again)
    if len(outputs) != len(expected) or not all(map(have_equal_bits, outputs, expected)):
        raise Declined("other outputs than nvFuser's", Scope.STORING)
    if not all(map(have_equal_bits, again, args)):
        raise Declined("other writes into inputs than nvFuser's", Scope.STORING)
    torch.cuda.current_stream().synchronize()


def refuse_arguments(args: Sequence[Any]) -> Sequence[Any]:
    """Refuses arguments that a run under verification is not for.

    Raises:
        Declined: always.
    """
    raise Declined("inputs that are not aligned as those that were captured", Scope.STORING)


def copy_tensor(tensor: Any) -> Any:
    """Returns a tensor with the same values, strides and offset from alignment, in new memory."""
    return _place_like(tensor, _flatten(tensor))


def roll_tensor(tensor: Any) -> Any:
    """Returns a copy like ``copy_tensor``, with each value in its memory moved on to the next element."""
    return _place_like(tensor, torch.roll(_flatten(tensor), 1))


def _flatten(tensor: Any) -> Any:
    """Returns all memory from the first element to the last, including gaps."""
    count = count_elements(tensor.shape, tensor.stride())
    return tensor.detach().as_strided((count,), (1,), tensor.storage_offset())


def _place_like(tensor: Any, flat: Any) -> Any:
    item = tensor.element_size()
    memory = torch.empty(flat.numel() + _COPY_ALIGNMENT // item, dtype=tensor.dtype, device=tensor.device)
    missing = (tensor.data_ptr() - memory.data_ptr()) % _COPY_ALIGNMENT
    if missing % item:
        raise ValueError("a tensor whose elements are not aligned")
    copy = memory[missing // item :][: flat.numel()]
    copy.copy_(flat)
    return copy.as_strided(tensor.shape, tensor.stride(), copy.storage_offset())


def have_equal_bits(one: Any, other: Any) -> bool:
    """Returns whether two tensors have the same shape, strides, dtype and bits."""
    if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return False
    return torch.equal(_as_bytes(one), _as_bytes(other))


def _as_bytes(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


_DESCRIPTORS, _RANDOM_CODE = "TensorMap", "philox"
"""Texts in the CUDA of kernels that take descriptors of tensors, or draw random numbers."""


def artifact_environment() -> Mapping[str, str] | None:
    """Returns the ingredients of artifacts: the device that kernels are scheduled for, the driver, versions.

    Returns None without ``cuda.bindings``, which is needed to inspect CUDA graphs.
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
    """Returns each kind of GPU in this process once: name, multiprocessors, architecture."""
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    kinds = {f"{gpu.name}, {gpu.multi_processor_count} SMs, {gpu.major}.{gpu.minor}" for gpu in found}
    return tuple(sorted(kinds))


def persist(graph: Graph, args: Sequence[Any], switches: Switches) -> Compiled[Run]:
    """Compiles with nvFuser. Adds artifacts that launch the same kernels in another process."""
    try:
        check_persistable(graph, args)
    except Declined as refusal:
        refusal.require(Scope.STORING, Scope.STORING_NOW)
        return _refuse(compile_definition(define_for(graph, args), graph, args, switches), refusal)
    start = time.perf_counter()
    compiled = compile_kept(define_for(graph, args), graph, args, switches)
    seconds = time.perf_counter() - start
    try:
        artifacts, verified = make_artifacts(compiled, find_device(graph, args), args, switches)
        run = compiled.keep_if_captured()  # nvFuser checks each argument in every call, and ``exact`` does not
        return Compiled(run, artifacts, None, exact_run=verified.launching(run).run, alone_seconds=seconds)
    except Exception as error:  # nvFuser's function works in spite of any error here
        if is_declined(error, Scope.STORING, Scope.STORING_NOW):
            return _refuse(compiled, error)
        logger.info("an executable is not stored", exc_info=error)
        reason = f"keeping failed: {type(error).__name__}"
        return Compiled(compiled.keep_if_captured(), None, reason, is_permanent=False)


def compile_kept(definition: Any, graph: Graph, args: Sequence[Any], switches: Switches) -> CompiledDefinition:
    """Compiles a definition of a graph, or more kernels of it for these arguments, into nvFuser's database."""
    return kernel_database().compile(switches, lambda: compile_definition(definition, graph, args, switches, (OPTION,)))


def _refuse(compiled: CompiledDefinition, refusal: Declined) -> Compiled[Run]:
    return Compiled(compiled.keep_if_captured(), None, refusal.reason, is_permanent=refusal.scope is Scope.STORING)


def load(
    artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any], compile_: Callable[[Graph, Sequence[Any]], Run]
) -> Run:
    """Loads the function of these artifacts on the arguments' device. ``compile_`` is for arguments that do not fit.

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
    stored = StoredRun(recipe, artifacts, compile_fallback(compile_, graph), driver(), device)
    try:
        with torch.cuda.device(device):
            stored.load(device)
    except DriverError as error:
        raise ValueError(f"a cubin that does not load: {error}") from error
    return stored.run


def compile_fallback(compile_: Callable[[Graph, Sequence[Any]], Run], graph: Graph) -> Run:
    """Returns a run for arguments that a recipe is not for: nvFuser compiles the graph in its first call."""

    def compile_for(args: Sequence[Any]) -> Run:
        # Compiling runs the graph once, so one that writes into its arguments is compiled with copies.
        return compile_(graph, [copy_tensor(arg) for arg in args] if writes_in_place(graph) else args)

    return compile_when_called(compile_for)


def check_persistable(graph: Graph, args: Sequence[Any]) -> None:
    """Checks a graph before nvFuser compiles it.

    Raises:
        Declined: if it is known that it cannot be persisted. The message is the reason.
    """
    obstacle = find_obstacle(graph)
    if obstacle:
        raise Declined(obstacle, Scope.STORING)
    if not all(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        raise Declined("an input that is no CUDA tensor", Scope.STORING)
    if len(list_device_kinds()) > 1:
        # The key does not contain which of them a region runs on, and kernels are scheduled for one.
        raise Declined("GPUs of several kinds in one process", Scope.STORING)
    check_tensors(args)


def find_obstacle(graph: Graph) -> str | None:
    """Returns why a graph cannot be persisted with any arguments; None if it might be."""
    if any(isinstance(type_, NumberType) for type_ in graph.inputs):
        return "a number among the inputs"
    if graph.sizes:
        return "symbolic sizes"
    if any(op_traits(op.name).random for op in graph.ops):
        return "random numbers"
    return "no input or constant that names the GPU" if not graph.inputs and find_fixed_gpu(graph) is None else None


def find_device(graph: Graph, args: Sequence[Any]) -> int | None:
    """Returns the number of the GPU that a graph runs on: its arguments', or the one it names if there are none."""
    return args[0].get_device() if args else find_fixed_gpu(graph)


def check_tensors(args: Sequence[Any]) -> None:
    """Checks that arguments are plain tensors on one device.

    Raises:
        Declined: if not. Another call of the same graph may have plain ones.
    """
    if len({arg.get_device() for arg in args}) > 1:
        raise Declined("inputs on several devices", Scope.STORING_NOW)
    if not all(arg.layout == torch.strided and type(arg.data) is torch.Tensor for arg in args):
        raise Declined("an input that is no plain tensor", Scope.STORING_NOW)
    if any(arg.is_conj() or arg.is_neg() for arg in args):
        raise Declined("an input that is to be conjugated or negated when it is read", Scope.STORING_NOW)


def make_artifacts(
    compiled: CompiledDefinition, device: int | None, args: Sequence[Any], switches: Switches
) -> tuple[Mapping[str, bytes], StoredRun]:
    """Returns the artifacts of a definition, and the run that was verified with them, which refuses other arguments.

    Raises:
        Declined: if it cannot be stored.
    """
    if compiled.device not in (None, device):
        raise Declined("a definition that is written for another device", Scope.STORING_NOW)
    with torch.cuda.device(device), torch.no_grad():
        if torch.cuda.is_current_stream_capturing():
            raise Declined("a CUDA graph is being captured", Scope.STORING_NOW)
        own, others = [copy_tensor(arg) for arg in args], [roll_tensor(arg) for arg in args]
        compiled.run(own)  # so that nothing is left to prepare for this layout and alignment
        captured = capture(driver(), compiled.run, own, others)
        artifacts = pack(captured, compiled, own, switches)
        return artifacts, verify(artifacts, captured, compiled.run, others, driver())


def pack(captured: Capture, compiled: CompiledDefinition, args: Sequence[Any], switches: Switches) -> dict[str, bytes]:
    """Returns the recipe, the cubin of each kernel under a name independent of this process, and the CUDA of all.

    Raises:
        Declined: if nvFuser's database lacks the kernels, or they are of a kind that is not supported.
    """
    recipe, code = captured.recipe, _read_code(compiled, args)
    functions = [step.function for step in recipe.launches]
    rows = kernel_database().rows(functions, code, switches) if functions or code else ()
    cubins = map(read_cubin, rows)
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
    """Returns the CUDA of the kernels, without nvFuser's runtime functions in front of each."""
    device = torch.cuda.current_device() if compiled.device is None else compiled.device
    given = [*args, *compiled.numbers]
    code = compiled.definition.fec.get_cuda_kernel(given, intrinsic_code=False, device=device)
    if _DESCRIPTORS in code:
        raise Declined("a kernel that takes descriptors of tensors", Scope.STORING)
    if _RANDOM_CODE in code:
        raise Declined("a kernel that draws random numbers", Scope.STORING)
    return code
