"""The ingredients ``state`` and ``variables``: what a trace can depend on of what is kept for the whole process.

This is what torch and Thunder keep, and variables of the environment that change what Thunder traces. What a model's
own code asks of the environment is a read of its program, and not here.

A mode that takes part in every call of torch, such as a ``TorchDispatchMode``, has no text that says what it does.
Under one no program is kept. Random numbers, the number of threads and the like are no part of a trace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from fusioncache.backends.torch_settings import read_torch_settings, read_variables
from fusioncache.ir.errors import Declined, Scope
from fusioncache.ir.key_text import NamedValue
from fusioncache.process.secrets import find_kind, write_text

_AUTOCAST_DEVICES = ("cpu", "cuda")
_PREFIXES = ("THUNDER_", "NVFUSER_", "PYTORCH_NVFUSER_")
"""What the names of variables begin with that Thunder and nvFuser read while a program is derived."""


def read_state(compile_data: Any) -> Iterator[NamedValue]:
    """Yields the state of torch, then that of Thunder.

    Args:
        compile_data: Thunder's ``CompileData`` of the function that is called.

    Raises:
        Declined: under a mode, or within another trace.
    """
    import torch

    _refuse_modes()
    yield "grad", torch.is_grad_enabled()
    yield "inference_mode", torch.is_inference_mode_enabled()
    yield "anomaly_mode", torch.is_anomaly_enabled()
    yield "torch_function", torch._C._is_torch_function_enabled()
    yield from _read_autocast()
    # The settings have the type of the default device only.
    yield "default_device", torch.get_default_device()
    yield from read_torch_settings().items()
    yield "compiling", (torch.compiler.is_compiling(), torch.compiler.is_exporting())
    yield from _read_devices()
    yield from _read_thunder(compile_data)


def _refuse_modes() -> None:
    import torch
    from torch.utils import _device

    functions = [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]
    foreign = [mode for mode in functions if type(mode) is not _device.DeviceContext]
    if foreign or torch._C._len_torch_dispatch_stack():
        name = type(foreign[-1]).__qualname__ if foreign else "a TorchDispatchMode"
        raise Declined(f"a torch mode is active: {name}", Scope.PROGRAM)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Declined("it is called inside a torch.func transform", Scope.PROGRAM)
    if torch._C._get_tracing_state() is not None:
        raise Declined("torch.jit is tracing", Scope.PROGRAM)


def _read_autocast() -> Iterator[NamedValue]:
    import torch

    for device in _AUTOCAST_DEVICES:
        yield f"autocast.{device}", torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    yield "autocast.cache", torch.is_autocast_cache_enabled()


def _read_devices() -> Iterator[NamedValue]:
    """Yields what Thunder's executors ask of a GPU before they claim an operation."""
    import torch

    if not torch.cuda.is_initialized():
        return
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    # Ranks that differ in the number of their GPU share, and so do machines with more of the same.
    kinds = sorted({f"{device.name} {device.major}.{device.minor}" for device in devices})
    yield "cuda.devices", ", ".join(kinds)
    yield "cuda.current_device", torch.cuda.current_device()
    yield "cudnn", torch.backends.cudnn.version()


def _read_thunder(compile_data: Any) -> Iterator[NamedValue]:
    from fusioncache.thunder_adapter.accelerator_api import get_langctx, trace
    from fusioncache.thunder_adapter.api import get_skip_data_parallel_grad_sync

    if trace._execution_file.get() is not None:
        raise Declined("Thunder reads its traces from a file that it wrote for editing", Scope.PROGRAM)
    yield "thunder.language", get_langctx().name
    yield "thunder.grad", compile_data.is_grad_enabled
    yield "thunder.autocast", _write_autocast_stack(compile_data.autocast_stack.stack)
    yield "thunder.no_grad_sync", get_skip_data_parallel_grad_sync()


def _write_autocast_stack(stack: Iterable[Any]) -> str:
    """Writes Thunder's stack of autocasts. It grows by one in each call under autocast, and only its top is asked.

    So what lies there several times is written once: a model that enters an autocast leaves it again.
    """
    return " ".join(f"{device}:{dtype}:{enabled}" for (device, dtype, enabled), _ in groupby(stack))


def read_variables_of_thunder() -> Iterator[NamedValue]:
    """Yields each variable that is set, by name, with its value as a text that may be written."""
    for name, value in read_variables(_PREFIXES, (), ()):
        now = os.environ.get(name, "")
        # One that was changed has both values.
        yield name, write_text(now if value == repr(now) else str(value), find_kind(name))
