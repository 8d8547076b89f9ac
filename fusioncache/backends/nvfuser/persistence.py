"""Keeps what nvFuser compiled, so that another process launches it without nvFuser.

What is kept was tried: a launch from the very bytes that are stored has to give nvFuser's own bits, for other values at
other addresses.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusioncache.backends.api import Compiled, Description, NotPersistable, NotPersistableNow, Run, Source
from fusioncache.backends.nvfuser.codec import decoded, encoded
from fusioncache.backends.nvfuser.kernel_db import OPTION, kernel_database, read_cubin
from fusioncache.backends.nvfuser.parts import CUBIN, Launch
from fusioncache.backends.nvfuser.recipe import VERSION
from fusioncache.backends.nvfuser.unfit import device_kinds, refuse_unfit
from fusioncache.ir import Graph
from fusioncache.ir.ops import writes_in_place
from fusioncache.process import forks

if TYPE_CHECKING:
    from fusioncache.backends.nvfuser.capture import Captured
    from fusioncache.backends.nvfuser.compiler import CompiledDefinition, Compiler

logger = logging.getLogger("fusioncache")

RECIPE = "recipe"
SOURCE = "kernels.cu"
"""The kernels' CUDA, for people: nothing reads it to launch them."""

_DESCRIPTORS, _RANDOM_CODE = "TensorMap", "philox"


class NvFuserKeeper:
    """Keeps what an ``NvFuser`` compiles: see ``persist`` and ``load`` of ``Backend``.

    Args:
        nvfuser: compiles.
    """

    def __init__(self, nvfuser: Compiler):
        self._nvfuser = nvfuser

    def environment(self) -> Mapping[str, str]:
        """What kept kernels depend on: the device, for which they are scheduled; the driver; the recipe's format."""
        from fusioncache.backends.nvfuser.driver import driver

        return {"device": "\n".join(device_kinds()), "driver": str(driver().version()), "recipe": str(VERSION)}

    def compile(self, graph: Graph, args: Sequence[Any]) -> Compiled:
        """The function that nvFuser compiles, and what launches the same kernels in another process.

        Raises:
            Whatever nvFuser raises.
        """
        try:
            refuse_unfit(graph, args)
        except NotPersistable as refusal:
            return _refused(self._nvfuser.compile(graph, args), refusal)
        database, options = kernel_database(), self._nvfuser.switches
        compiled = database.compiling(options, lambda: self._nvfuser.compiled(graph, args, (OPTION,)))
        try:
            return Compiled(compiled.run, self._artifacts(graph, compiled, args), None)
        except NotPersistable as refusal:
            return _refused(compiled.run, refusal)
        except Exception as error:  # nvFuser's own function works, whatever this is
            logger.info("a program is not kept", exc_info=error)
            return Compiled(compiled.run, None, f"keeping failed: {type(error).__name__}", lasting=False)

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """The function that was kept, loaded on the arguments' device.

        Raises:
            ValueError: if the artifacts are damaged, or for other arguments.
        """
        import torch

        from fusioncache.backends.nvfuser.driver import DriverError, driver
        from fusioncache.backends.nvfuser.fitting import fits
        from fusioncache.backends.nvfuser.launch import Launcher

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

    def _artifacts(self, graph: Graph, compiled: CompiledDefinition, args: Sequence[Any]) -> Mapping[str, bytes]:
        import torch

        from fusioncache.backends.nvfuser.capture import capture
        from fusioncache.backends.nvfuser.driver import driver
        from fusioncache.backends.nvfuser.tensors import copied, rolled
        from fusioncache.backends.nvfuser.verify import verify

        device = args[0].get_device()
        if compiled.device not in (None, device):
            raise NotPersistableNow("a program that is written for another device")
        with torch.cuda.device(device), torch.no_grad():
            if torch.cuda.is_current_stream_capturing():
                raise NotPersistableNow("a CUDA graph is being captured")
            mine, others = [copied(arg) for arg in args], [rolled(arg) for arg in args]
            compiled.run(mine)  # so that nothing is left to prepare for tensors that lie as these do
            captured = capture(driver(), compiled.run, mine, others)
            artifacts = self._packed(captured, compiled, mine)
            verify(artifacts, captured, compiled.run, others, driver())
        return artifacts

    def _packed(self, captured: Captured, compiled: CompiledDefinition, args: Sequence[Any]) -> dict[str, bytes]:
        """The recipe, the cubin of each kernel by a name that says nothing of this process, and the CUDA of all."""
        launches = [step for step in captured.recipe.steps if isinstance(step, Launch)]
        code = self._code(compiled, args)
        cubins = self._cubins([step.function for step in launches], code)
        names: dict[bytes, str] = {}
        steps = []
        waiting = iter(cubins)
        for step in captured.recipe.steps:
            if isinstance(step, Launch):
                step = replace(step, cubin=names.setdefault(next(waiting), f"{len(names)}{CUBIN}"))
            steps.append(step)
        recipe = replace(captured.recipe, steps=tuple(steps))
        source = {SOURCE: code.encode(errors="replace")} if code else {}
        return {RECIPE: encoded(recipe), **{name: cubin for cubin, name in names.items()}, **source}

    def _code(self, compiled: CompiledDefinition, args: Sequence[Any]) -> str:
        """The CUDA of the kernels, without nvFuser's own functions that are put before each."""
        device = args[0].get_device() if compiled.device is None else compiled.device
        code = compiled.definition.fec.get_cuda_kernel(list(args), intrinsic_code=False, device=device)
        if _DESCRIPTORS in code:
            raise NotPersistable("a kernel that takes descriptors of tensors")
        if _RANDOM_CODE in code:
            raise NotPersistable("a kernel that draws random numbers")
        return code

    def _cubins(self, names: Sequence[str], code: str) -> list[bytes]:
        database = kernel_database()
        if code:
            database.must_be_open()
        return [read_cubin(row) for row in database.rows(names, code, self._nvfuser.switches)] if names or code else []


def describe(artifacts: Mapping[str, bytes]) -> Description:
    """See ``Backend``. A program of views alone has neither kernels nor source."""
    sources = (Source(SOURCE, "cuda", artifacts[SOURCE].decode(errors="replace")),) if SOURCE in artifacts else ()
    steps = json.loads(artifacts[RECIPE])["steps"] if RECIPE in artifacts else []
    wanted = ("function", "cubin", "grid", "block", "shared")
    launches = tuple({name: step[name] for name in wanted} for step in steps if "function" in step)
    return Description(sources, launches, not sources and any(name.endswith(CUBIN) for name in artifacts))


def _refused(run: Run, refusal: NotPersistable) -> Compiled:
    return Compiled(run, None, str(refusal), lasting=not isinstance(refusal, NotPersistableNow))


class _Compiling:
    """Computes what a recipe is not for: compiled by nvFuser when it is first needed.

    Args:
        nvfuser: compiles.
        graph: what to compute.
    """

    def __init__(self, nvfuser: Compiler, graph: Graph):
        self._nvfuser = nvfuser
        self._graph = graph
        self._lock = forks.lock()
        self._run: Run | None = None

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        with self._lock:
            if self._run is None:
                self._run = self._nvfuser.compiled(self._graph, self._spared(args)).run
        return self._run(args)

    def _spared(self, args: Sequence[Any]) -> Sequence[Any]:
        """What to compile with, which runs it once: copies, where it writes into its arguments."""
        from fusioncache.backends.nvfuser.tensors import copied

        return [copied(arg) for arg in args] if writes_in_place(self._graph) else args
