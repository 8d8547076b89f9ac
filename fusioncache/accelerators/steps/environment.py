"""What Thunder's prologues ask of a call beside its arguments: torch's defaults, gradients, shared memory.

The same values as Thunder's ``populate_cache_info``, which flattens the arguments and looks for a default device among
the modes of torch functions in each call. Where arguments are not as simple as that, it is called.
"""

from __future__ import annotations

from typing import Any

import torch

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})
"""Types of arguments in which there is no other argument."""

_CPU = torch.device("cpu")


def describe_call(info: dict[str, Any], compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Writes what Thunder knows of a call into its dictionary.

    There must be neither a mode of torch functions, as a default device is one, nor autocast.

    Args:
        info: gets it.
        compiled: what Thunder knows of the function that is called. It gets to know whether gradients are wanted.
        args: of the call.
        kwargs: of the call.
    """
    if not _are_apart((*args, *kwargs.values())) or compiled.compile_options.get("skip_inplace_alias_updates"):
        compiled.populate_cache_info(info, *args, **kwargs)
        return
    compiled.is_grad_enabled = torch.is_grad_enabled()
    info["default_dtype"] = torch.get_default_dtype()
    info["default_device"] = _find_default_device()
    info["is_autocast_enabled"] = False
    info["alias_tensor_indices"] = ""
    info["is_grad_enabled"] = compiled.is_grad_enabled
    info["no_grad_sync"] = _is_synchronization_off(compiled.fn)


def _are_apart(args: tuple[Any, ...]) -> bool:
    """Tells whether arguments are plain, and no two of them lie in the same memory. Parameters are not asked."""
    if not _PLAIN.issuperset(map(type, args)):
        return False
    tensors = [arg for arg in args if type(arg) is torch.Tensor]
    if len(tensors) < 2:
        return True
    if any(each.layout is not torch.strided for each in tensors):
        return False
    return len({each.untyped_storage().data_ptr() for each in tensors}) == len(tensors)


def _find_default_device() -> torch.device:
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not None:
        return torch.get_default_device()
    return _CPU


def _is_synchronization_off(model: Any) -> bool:
    """Tells whether gradients are not to be exchanged among ranks that share the model."""
    names = vars(model)
    if not (names.get("use_ddp") or names.get("use_fsdp")):
        return False
    from fusioncache.thunder_adapter.api import get_skip_data_parallel_grad_sync

    return bool(get_skip_data_parallel_grad_sync())
