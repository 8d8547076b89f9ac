"""The ingredient that names settings: what of torch's state and of the process's variables changes what is compiled.

A region's text does not say all that becomes of it: where both branches of a ``where`` are numbers, torch gives the
result its default dtype, whatever Thunder said. So what a translator or a compiler reads besides the region is written
down, one name and value a line. Too much in the list costs a compile after a change; too little would be a wrong model.

Left out is what nothing reads while a region is compiled: gradients and autocast are off then, as they are around all
that Thunder runs. Functions of torch that were replaced are not seen here.

Further, what torch says of its devices at this moment: a capture, a device that is full, a device that is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from fusioncache.ir.keys import NamedValue, write_values
from fusioncache.ir.template import Option


def is_capturing() -> bool:
    """True if a CUDA graph is captured on the current stream."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_out_of_memory(error: Exception) -> bool:
    """True if a device has no memory left, which says nothing of what was computed."""
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def is_device_lost() -> bool:
    """True if CUDA fails whatever is asked of it, as behind an illegal access: nothing can run then."""
    import torch

    if not torch.cuda.is_initialized() or is_capturing():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


VARIABLES_AT_START: Mapping[str, str] = dict(os.environ)
"""The variables before anything was compiled."""

_NO_ANSWER = "no answer"


def read_torch_settings() -> dict[str, Option]:
    """Returns what every backend depends on: torch's defaults and precisions, and whether it must be deterministic."""
    return {setting.name: setting.value for setting in _list_settings()}


def write_settings(*more: NamedValue) -> str:
    """Returns the ingredient ``settings``: torch's, and more of a backend's own."""
    return write_values([*read_torch_settings().items(), *more])


@contextmanager
def apply_torch_settings(settings: Mapping[str, Option]) -> Iterator[None]:
    """Gives torch the settings that some process had. They hold for the whole process until this is over.

    Raises:
        ValueError: names one that cannot be made here.
    """
    before = read_torch_settings()
    try:
        _set_all(settings)
        yield
    finally:
        _set_all(before)


def _set_all(settings: Mapping[str, Option]) -> None:
    # In the order of the list, because some set others that come later.
    for setting in _list_settings():
        wanted = settings.get(setting.name, setting.value)
        if wanted != setting.value and not str(wanted).startswith(_NO_ANSWER):
            try:
                setting.set(wanted)
            except Exception as error:  # whatever torch raises for another torch's values
                raise ValueError(f"{setting.name} cannot be {wanted}") from error


def read_variables(prefixes: tuple[str, ...], names: Collection[str], but: tuple[str, ...]) -> Iterator[NamedValue]:
    """Yields the process's environment variables that a compiler reads, in order, each with its value.

    Compilers read some when they are imported or first used, and some each time. One that was changed in between has
    both values, so that it is like no variable of a process that had it from the beginning.

    Args:
        prefixes: what their names begin with.
        names: of others.
        but: what names begin with that say no more than where something is put, printed or asked for.
    """
    # Most are of no interest, and this is asked in the middle of steps.
    found = [name for name in {*os.environ, *VARIABLES_AT_START} if name.startswith(prefixes) or name in names]
    for name in sorted(found):
        if not name.startswith(but):
            first, now = VARIABLES_AT_START.get(name), os.environ.get(name)
            yield name, repr(now) if now == first else f"{now!r} (at first {first!r})"


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting of torch.

    Attributes:
        name: in the ingredient.
        get: asks torch.
        set: tells torch; takes what ``value`` was.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]

    @property
    def value(self) -> Option:
        """Returns what it is now: a bool, or a text of one line."""
        try:
            value = self.get()
        except (RuntimeError, AttributeError) as error:  # mixed with another way to set the same, or another torch
            return f"{_NO_ANSWER}: {type(error).__name__}"
        return value if isinstance(value, bool) else str(value).replace("\n", " ")


@cache
def _list_settings() -> tuple[_Setting, ...]:
    import torch

    backends = torch.backends
    matmul, cudnn, mkldnn, cuda = backends.cuda.matmul, backends.cudnn, backends.mkldnn, backends.cuda
    return (
        _Setting("torch.default_dtype", lambda: torch.get_default_dtype(), _set_default_dtype),
        # Its type alone: ranks that differ in the number of their GPU share.
        _Setting("torch.default_device", lambda: torch.get_default_device().type, _set_default_device),
        _Setting("torch.deterministic", lambda: torch.get_deterministic_debug_mode(), _set_deterministic),
        _attribute("torch.utils.deterministic", torch.utils.deterministic, "fill_uninitialized_memory"),
        _Setting(
            "torch.float32_matmul_precision",
            lambda: torch.get_float32_matmul_precision(),
            torch.set_float32_matmul_precision,
        ),
        _attribute("torch.backends", backends, "fp32_precision"),
        _attribute("torch.backends.cuda.matmul", matmul, "fp32_precision"),
        _attribute("torch.backends.cuda.matmul", matmul, "allow_fp16_reduced_precision_reduction"),
        _attribute("torch.backends.cuda.matmul", matmul, "allow_bf16_reduced_precision_reduction"),
        _attribute("torch.backends.cuda.matmul", matmul, "allow_fp16_accumulation"),
        *(_attribute("torch.backends.cudnn", cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        _attribute("torch.backends.cudnn.conv", cudnn.conv, "fp32_precision"),
        _attribute("torch.backends.cudnn.rnn", cudnn.rnn, "fp32_precision"),
        *(_attribute("torch.backends.mkldnn", mkldnn, name) for name in ("enabled", "deterministic")),
        _attribute("torch.backends.mkldnn.matmul", mkldnn.matmul, "fp32_precision"),
        _attribute("torch.backends.mkldnn.conv", mkldnn.conv, "fp32_precision"),
        _attribute("torch.backends.opt_einsum", backends.opt_einsum, "enabled"),
        _attribute("torch.backends.opt_einsum", backends.opt_einsum, "strategy"),
        _Setting("torch.flash_sdp", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        _Setting("torch.mem_efficient_sdp", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        _Setting("torch.math_sdp", cuda.math_sdp_enabled, cuda.enable_math_sdp),
        _Setting("torch.cudnn_sdp", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        _Setting("torch.sdp_priority", lambda: torch._C._get_sdp_priority_order(), _set_sdp_priority),
    )


def _attribute(module: str, owner: Any, name: str) -> _Setting:
    return _Setting(f"{module}.{name}", lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _set_default_dtype(name: str) -> None:
    import torch

    torch.set_default_dtype(getattr(torch, name.removeprefix("torch.")))


def _set_default_device(device: str) -> None:
    import torch

    torch.set_default_device(None if device == "cpu" else device)


def _set_sdp_priority(order: str) -> None:
    import torch

    torch._C._set_sdp_priority_order([int(kernel) for kernel in order.strip("[]").split(",")])


def _set_deterministic(mode: str) -> None:
    import torch

    torch.set_deterministic_debug_mode(int(mode))


def write_versions(*own: NamedValue) -> str:
    """Returns the ingredient ``versions``: each package whose version changes what is compiled.

    Args:
        own: name and version of each package of the backend. Those of torch and Thunder are added.
    """
    import torch

    from fusioncache.thunder_adapter.versions import read_own_version

    return write_values([*own, ("torch", torch.__version__), ("thunder", read_own_version())])
