"""Thunder's executors: the list to use, the origin of a region, and advice if none of them fuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fusioncache.backends.api import problem
from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.capabilities import explain_unusable

if TYPE_CHECKING:
    from fusioncache.thunder_adapter.api import Executor
    from fusioncache.transform.provenance.source import Compilation

NAME = "fusioncache"

_PASS = "pass executors=fusioncache.executors() to Thunder"
_INSTALL = 'install it with pip install "fusioncache[nvfuser]"'


def register() -> Executor:
    """Registers fusioncache's executor with Thunder, and makes nvFuser's direct bindings usable.

    In a Thunder without a required capability, it registers an executor under this name that claims nothing.
    """
    from fusioncache.thunder_adapter.accelerator_api import OperatorExecutor, register_executor

    try:
        from fusioncache.transform.executor import FusionCacheExecutor
    except ImportError:
        if explain_unusable() is None:
            raise
        return register_executor(OperatorExecutor(NAME))

    problem("nvfuser", "cuda")
    return register_executor(FusionCacheExecutor(NAME))


def list_executors() -> list[Executor]:
    """Returns the executors of ``fusioncache.executors``, without one for attention."""
    from fusioncache.thunder_adapter.api import get_always_executors, get_default_executors, get_executor

    others = [executor for executor in get_default_executors() if executor not in get_always_executors()]
    if explain_unusable():
        return others
    if problem("nvfuser", "cuda") is None:
        from fusioncache.transform.executor import unshared_check

        return [*others, unshared_check()]
    own = get_executor(NAME) or register()
    return [*(executor for executor in others if executor.name != "nvfuser"), own]


@dataclass(frozen=True, slots=True)
class Origin:
    """The executor that made a region.

    Attributes:
        call: the region as the executor made it.
        backend: the name of the corresponding backend; None if any backend will do.
        options: the backend options that the executor was given.
    """

    call: Callable[..., Any]
    backend: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def origin_of(fusion: Any) -> Origin:
    """Returns the origin of a fused bound symbol.

    Raises:
        Declined: if the executor is unknown, or saves the inputs of each region.
    """
    from fusioncache.thunder_adapter.accelerator_api import TorchCompileExecutor
    from fusioncache.transform.executor import FusionCacheExecutor

    executor = fusion.sym.executor
    call = (fusion._call_ctx or {}).get(fusion.sym.name)
    if call is None:
        raise Declined("a fused call without a function", Scope.REGION)
    if isinstance(executor, FusionCacheExecutor):
        return Origin(call)
    if isinstance(executor, TorchCompileExecutor):
        return Origin(call, "inductor", {"mode": executor.mode})
    if getattr(executor, "name", None) == "nvfuser":
        return _nvfuser_origin(call)
    raise Declined(f"regions of executor {getattr(executor, 'name', type(executor).__name__)}", Scope.REGION)


def _nvfuser_origin(wrapper: Any) -> Origin:
    if wrapper.store_inputs or wrapper.save_fake_inputs:
        raise Declined("Thunder's nvFuser executor was told to save each region's inputs", Scope.REGION)
    options = {"enable": tuple(wrapper.enable_options or ()), "disable": tuple(wrapper.disable_options or ())}
    return Origin(wrapper, "nvfuser", options)


def explain_unfused(compilation: Compilation) -> str | None:
    """Returns the reason why a trace has no region, with advice; None if executors fuse, or if this is not known.

    The user has to act, because other executors compute other bits, and take time to compile.
    """
    if compilation.fuses is not False:
        return None
    reason, advice = _find_cause()
    return f"Thunder fuses nothing, so there is nothing to share: {reason}. To change that, {advice}"


def _find_cause() -> tuple[str, str]:
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device, and nvFuser needs one", _PASS
    if find_spec("nvfuser_direct") is None:
        return "nvFuser is not installed", f"{_INSTALL}, or {_PASS}"
    reason = problem("nvfuser", "cuda")
    if reason is None:
        return "none of the executors that Thunder was given fuses", _PASS
    return f"nvFuser does not work here, {reason}", f"{_INSTALL}, or {_PASS}"
