"""Which executor made a region, and what it would have compiled it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusioncache.ir import Bypass


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a region comes from.

    Attributes:
        call: the region as its executor made it.
        backend: the backend that its executor stands for; None if any will do.
        options: the backend's options that were given to that executor.
    """

    call: Callable[..., Any]
    backend: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def origin_of(fusion: Any) -> Origin:
    """The maker of a fused bound symbol.

    Raises:
        Bypass: if the executor is not a known one, or was told to keep each region's inputs.
    """
    from thunder.executors.torch_compile import TorchCompileExecutor

    from fusioncache.trace.executor import FusionCacheExecutor

    executor = fusion.sym.executor
    call = (fusion._call_ctx or {}).get(fusion.sym.name)
    if call is None:
        raise Bypass("a fused call without a function")
    if isinstance(executor, FusionCacheExecutor):
        return Origin(call)
    if isinstance(executor, TorchCompileExecutor):
        return Origin(call, "inductor", {"mode": executor.mode})
    if getattr(executor, "name", None) == "nvfuser":
        return _nvfuser_origin(call)
    raise Bypass(f"regions of executor {getattr(executor, 'name', type(executor).__name__)}")


def _nvfuser_origin(wrapper: Any) -> Origin:
    if wrapper.store_inputs or wrapper.save_fake_inputs:
        raise Bypass("nvFuser is told to keep each region's inputs")
    options = {"enable": tuple(wrapper.enable_options or ()), "disable": tuple(wrapper.disable_options or ())}
    return Origin(wrapper, "nvfuser", options)
