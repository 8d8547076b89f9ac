"""What a new tensor proxy is like, worked out without asking each time what is known of a dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any


def shorten_infer_properties(original: Callable[..., Any]) -> Callable[..., Any]:
    """Works out what follows from a shape of plain numbers and a dtype of Thunder's, if the tensor is not sharded."""
    from thunder.core.compile_data import using_symbolic_values
    from thunder.core.proxies import DistParallelType

    from fusioncache.thunder_adapter.api import Device

    unsharded, kinds = DistParallelType.NONE, _describe_dtypes()

    @wraps(original)
    def _infer_tensor_properties(
        like: Any = None,
        shape: Any = None,
        device: Any = None,
        dtype: Any = None,
        requires_grad: Any = None,
        grad: Any = None,
        distparallel_type: Any = None,
        thunder_fsdp_padding_size: Any = None,
    ) -> Any:
        known = kinds.get(id(dtype))
        plain = like is None and type(device) is Device and type(requires_grad) is bool
        sharded = thunder_fsdp_padding_size is not None or distparallel_type not in (None, unsharded)
        if not plain or known is None or sharded or not _is_plain_shape(shape) or using_symbolic_values():
            more = (requires_grad, grad, distparallel_type, thunder_fsdp_padding_size)
            return original(like, shape, device, dtype, *more)
        _, inexact, strong, weak = known
        true = dtype if shape else weak
        needs = requires_grad and inexact
        shape = tuple(shape)
        of_grad = (needs, grad if needs else None)
        return shape, device, strong, true, math.prod(shape), len(shape), *of_grad, unsharded, None

    return _infer_tensor_properties


def _is_plain_shape(shape: Any) -> bool:
    return type(shape) in (tuple, list) and all(type(length) is int and length >= 0 for length in shape)


def _describe_dtypes() -> dict[int, tuple[Any, bool, Any, Any]]:
    """Returns each dtype by its identity, whether it is inexact, and its strong and weak counterparts."""
    from fusioncache.thunder_adapter.api import dtypes

    known: dict[int, tuple[Any, bool, Any, Any]] = {}
    for each in dtypes.all_dtypes:
        weak, strong = dtypes.to_weak_dtype(each), dtypes.to_strong_dtype(each)
        known[id(each)] = (each, dtypes.is_inexact_dtype(each), strong, weak)
    return known
