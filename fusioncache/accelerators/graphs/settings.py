"""What torch is told to do with operations, besides to run them, read in a microsecond or two.

A captured program launches the kernels that the settings of its capture asked for. One that runs as it is asks them
in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

_GETTERS = (
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_float32_matmul_precision",
    "_get_cudnn_enabled",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_cudnn_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_sdp_priority_order",
    "_get_blas_preferred_backend",
    "_get_linalg_preferred_backend",
    "_len_torch_dispatch_stack",
    "_len_torch_function_stack",
)
_PRECISIONS = (("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
_AS_IT_IS = nullcontext()


def read_settings() -> tuple[Any, ...]:
    """Returns torch's settings, in an order of their own, as values that can be compared."""
    getters, read_precision = _find_getters()
    return (*[get() for get in getters], *[read_precision(*which) for which in _PRECISIONS])


@cache
def _find_getters() -> tuple[tuple[Callable[[], Any], ...], Callable[..., Any]]:
    import torch

    found = tuple(getattr(torch._C, name) for name in _GETTERS if hasattr(torch._C, name))
    return tuple(_hashable(get) for get in found), getattr(torch._C, "_get_fp32_precision_getter", lambda *_: None)


def _hashable(get: Callable[[], Any]) -> Callable[[], Any]:
    return (lambda: tuple(get())) if isinstance(get(), list) else get


def is_intercepted() -> bool:
    """Tells whether a mode sees each of torch's operations, which it would not in a replay.

    The mode that ``torch.set_default_device`` and ``with device:`` install is none of these: a trace names its devices.
    """
    import torch
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    if torch._C._len_torch_dispatch_stack():
        return True
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def is_saving_hooked() -> bool:
    """Tells whether hooks take over what autograd saves: they may keep it for longer than its memory is promised."""
    import torch

    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def without_gradients() -> AbstractContextManager[Any]:
    """Returns a context in which autograd records nothing. It takes no time where autograd records nothing anyway."""
    import torch

    return torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS
