"""The key ingredient ``settings``: the torch settings and environment variables that change compiled code.

A region's text does not determine its results alone: where both branches of a ``where`` are numbers, torch gives the
result its default dtype, even if Thunder recorded another one. So everything that a translator or a compiler reads
besides the region is listed, one name and value per line. A superfluous setting costs a compile after a change; a
missing one would give a wrong model.

Settings that nothing reads while a region is compiled are left out: gradients and autocast are off then, as around all
that Thunder runs. Functions of torch that were replaced are not detected.

Also here: the state of torch's devices at the moment: a capture in progress, no memory left, a lost device.
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
    """True if an error means that a device has no memory left. It does not mean that the computation is at fault."""
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def is_device_lost() -> bool:
    """True if every CUDA call fails, as after an illegal memory access. Nothing can run then."""
    import torch

    if not torch.cuda.is_initialized() or is_capturing():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


VARIABLES_AT_START: Mapping[str, str] = dict(os.environ)
"""The environment variables before anything was compiled."""

_NO_ANSWER = "no answer"


def read_torch_settings() -> dict[str, Option]:
    """Returns the settings that every backend depends on: torch's default dtype and device, precisions, determinism."""
    return {setting.name: setting.value for setting in _list_settings()}


def write_settings(*more: NamedValue) -> str:
    """Returns the ingredient ``settings``: torch's settings, and more from a backend."""
    return write_values([*read_torch_settings().items(), *more])


@contextmanager
def apply_torch_settings(settings: Mapping[str, Option]) -> Iterator[None]:
    """Applies torch settings of another process in the body. They hold for the whole process until the body ends.

    Raises:
        ValueError: names a setting that cannot be applied here.
    """
    before = read_torch_settings()
    try:
        _set_all(settings)
        yield
    finally:
        _set_all(before)


def _set_all(settings: Mapping[str, Option]) -> None:
    # In the order of the list, because setting some of them changes later ones.
    for setting in _list_settings():
        wanted = settings.get(setting.name, setting.value)
        if wanted != setting.value and not str(wanted).startswith(_NO_ANSWER):
            try:
                setting.set(wanted)
            except Exception as error:  # torch raises various errors for values of another torch version
                raise ValueError(f"{setting.name} cannot be {wanted}") from error


def read_variables(prefixes: tuple[str, ...], names: Collection[str], but: tuple[str, ...]) -> Iterator[NamedValue]:
    """Yields the environment variables that a compiler reads, sorted by name, each with its value.

    Compilers read some variables at their import or first use, and some each time. One that was changed in between is
    written with both values, so that it differs from a variable that was never changed.

    Args:
        prefixes: what their names begin with.
        names: other names.
        but: prefixes of names that are left out. They only say where something is stored, printed or requested.
    """
    # Most are irrelevant, and this runs in the middle of steps.
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
        get: reads it from torch.
        set: sets it in torch; takes an earlier ``value``.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]

    @property
    def value(self) -> Option:
        """Returns the current value: a bool, or a text of one line."""
        try:
            value = self.get()
        except (RuntimeError, AttributeError) as error:  # also set through a conflicting API, or another torch
            return f"{_NO_ANSWER}: {type(error).__name__}"
        return value if isinstance(value, bool) else str(value).replace("\n", " ")


@cache
def _list_settings() -> tuple[_Setting, ...]:
    import torch

    backends = torch.backends
    matmul, cudnn, mkldnn, cuda = backends.cuda.matmul, backends.cudnn, backends.mkldnn, backends.cuda
    return (
        _Setting("torch.default_dtype", lambda: torch.get_default_dtype(), _set_default_dtype),
        # Only the device type, so that ranks on different GPU numbers share.
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
    """Returns the ingredient ``versions``: the version of each package that affects what is compiled.

    Args:
        own: name and version of each package of the backend. Those of torch and Thunder are added.
    """
    import torch

    from fusioncache.thunder_adapter.versions import read_own_version

    return write_values([*own, ("torch", torch.__version__), ("thunder", read_own_version())])
