"""Keeps what nvFuser compiled, so that another process launches it without nvFuser.

What is kept was tried: a launch from the very bytes that are stored has to give nvFuser's own bits, for other values at
other addresses.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusioncache.backends.made import Made, NotKept, Run
from fusioncache.backends.stored_kernels.codec import decoded, encoded
from fusioncache.backends.stored_kernels.kernel_db import OPTION, kernel_database, read_cubin
from fusioncache.backends.stored_kernels.recipe import CUBIN, VERSION, Launch
from fusioncache.ir import Graph, NumberType

if TYPE_CHECKING:
    from fusioncache.backends.nvfuser import Compiled, NvFuser
    from fusioncache.backends.stored_kernels.capture import Captured

logger = logging.getLogger("fusioncache")

RECIPE = "recipe"

_DESCRIPTORS, _RANDOM_CODE = "TensorMap", "philox"
_RANDOM = ("uniform", "random", "philox", "multinomial", "rng")


class NvFuserKeeper:
    """Keeps what an ``NvFuser`` compiles: see ``Keeper`` in ``cache/kept.py``.

    Args:
        nvfuser: compiles.
    """

    def __init__(self, nvfuser: NvFuser):
        self._nvfuser = nvfuser

    def environment(self) -> Mapping[str, str]:
        """What kept kernels depend on: the device, for which they are scheduled; the driver; the recipe's format."""
        import torch

        from fusioncache.backends.stored_kernels.driver import driver

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        device = f"{properties.name}, {properties.multi_processor_count} SMs, {properties.major}.{properties.minor}"
        return {"device": device, "driver": str(driver().version()), "recipe": str(VERSION)}

    def compile(self, graph: Graph, args: Sequence[Any]) -> Made:
        """The function that nvFuser compiles, and what launches the same kernels in another process.

        Raises:
            Whatever nvFuser raises.
        """
        reason = unfit(graph, args)
        if reason is not None:
            return Made(self._nvfuser.compile(graph, args), None, reason)
        database, options = kernel_database(), self._nvfuser.options
        compiled = database.compiling(options, lambda: self._nvfuser.compiled(graph, args, (OPTION,)))
        try:
            return Made(compiled.run, self._artifacts(graph, compiled, args), None)
        except NotKept as refusal:
            return Made(compiled.run, None, str(refusal))
        except Exception as error:  # nvFuser's own function works, whatever this is
            logger.info("a program is not kept", exc_info=error)
            return Made(compiled.run, None, f"keeping failed: {type(error).__name__}")

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """The function that was kept, loaded on the arguments' device.

        Raises:
            ValueError: if the artifacts are damaged, or for other arguments.
        """
        import torch

        from fusioncache.backends.stored_kernels.driver import DriverError, driver
        from fusioncache.backends.stored_kernels.launch import Launcher, fits

        if RECIPE not in artifacts:
            raise ValueError("artifacts without a recipe")
        recipe = decoded(artifacts[RECIPE])
        fits(recipe, args)
        launcher = Launcher(recipe, artifacts, _Compiling(self._nvfuser, graph), driver())
        device = args[0].get_device()
        try:
            with torch.cuda.device(device):
                launcher.loaded(device)
        except DriverError as error:
            raise ValueError(f"a cubin that does not load: {error}") from error
        return launcher.run

    def _artifacts(self, graph: Graph, compiled: Compiled, args: Sequence[Any]) -> Mapping[str, bytes]:
        import torch

        from fusioncache.backends.stored_kernels.capture import capture
        from fusioncache.backends.stored_kernels.driver import driver
        from fusioncache.backends.stored_kernels.tensors import copied, rolled
        from fusioncache.backends.stored_kernels.verify import verify

        device = args[0].get_device()
        if compiled.device not in (None, device):
            raise NotKept("a program that is written for another device")
        with torch.cuda.device(device), torch.no_grad():
            if torch.cuda.is_current_stream_capturing():
                raise NotKept("a CUDA graph is being captured")
            mine, others = [copied(arg) for arg in args], [rolled(arg) for arg in args]
            compiled.run(mine)  # so that nothing is left to prepare for tensors that lie as these do
            captured = capture(driver(), compiled.run, mine, others)
            artifacts = self._packed(captured, compiled, mine)
            verify(artifacts, captured, compiled.run, others, driver())
        return artifacts

    def _packed(self, captured: Captured, compiled: Compiled, args: Sequence[Any]) -> dict[str, bytes]:
        """The recipe, and the cubin of each kernel, by names that say nothing of this process."""
        launches = [step for step in captured.recipe.steps if isinstance(step, Launch)]
        cubins = self._cubins([step.function for step in launches], compiled, args)
        names: dict[bytes, str] = {}
        steps = []
        waiting = iter(cubins)
        for step in captured.recipe.steps:
            if isinstance(step, Launch):
                step = replace(step, cubin=names.setdefault(next(waiting), f"{len(names)}{CUBIN}"))
            steps.append(step)
        recipe = replace(captured.recipe, steps=tuple(steps))
        return {RECIPE: encoded(recipe), **{name: cubin for cubin, name in names.items()}}

    def _cubins(self, names: Sequence[str], compiled: Compiled, args: Sequence[Any]) -> list[bytes]:
        device = args[0].get_device() if compiled.device is None else compiled.device
        code = compiled.definition.fec.get_cuda_kernel(list(args), intrinsic_code=False, device=device)
        if _DESCRIPTORS in code:
            raise NotKept("a kernel that takes descriptors of tensors")
        if _RANDOM_CODE in code:
            raise NotKept("a kernel that draws random numbers")
        database = kernel_database()
        if code:
            database.must_be_open()
        return [read_cubin(row) for row in database.rows(names, code, self._nvfuser.options)] if names or code else []


def unfit(graph: Graph, args: Sequence[Any]) -> str | None:
    """Why nothing of this program can be kept, if that is known before it is compiled."""
    import torch

    if any(isinstance(type_, NumberType) for type_ in graph.inputs):
        return "a number among the inputs"
    if graph.sizes:
        return "symbolic sizes"
    if any(word in op.name for op in graph.ops for word in _RANDOM):
        return "random numbers"
    if not args:
        return "no inputs"
    if not all(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        return "an input that is no CUDA tensor"
    if len({arg.get_device() for arg in args}) > 1:
        return "inputs on several devices"
    if not all(arg.layout == torch.strided and type(arg.data) is torch.Tensor for arg in args):
        return "an input that is no plain tensor"
    if any(arg.is_conj() or arg.is_neg() for arg in args):
        return "an input that is to be conjugated or negated when it is read"
    return None


class _Compiling:
    """Computes what a recipe is not for: compiled by nvFuser when it is first needed."""

    def __init__(self, nvfuser: NvFuser, graph: Graph):
        self._nvfuser = nvfuser
        self._graph = graph
        self._lock = threading.Lock()
        self._run: Run | None = None

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        with self._lock:
            if self._run is None:
                self._run = self._nvfuser.compiled(self._graph, args).run
        return self._run(args)
