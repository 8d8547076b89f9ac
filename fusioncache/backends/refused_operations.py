"""A Thunder executor for operations of regions that Thunder's executors for torch and Python refuse.

Regions for nvFuser contain operations without a torch function, and numbers where torch's functions take only tensors.
With this executor torch can compute every region.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

from fusioncache.thunder_adapter.api import NumberProxy, OperatorExecutor, TensorProxy, dtypes, ltorch, prims

executor = OperatorExecutor("fusioncache_refused")

_TENSORS_ONLY: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys((prims.fmod, prims.eq, prims.ne, prims.ge, prims.gt, prims.le, prims.lt, prims.where), (0,)),
    **dict.fromkeys((prims.atan2, prims.maximum, prims.minimum, prims.nextafter), (0, 1)),
}
"""The positions of operands that torch's function takes only as tensors, where the primitive also takes numbers."""


def _register_with_tensors(symbol: Any, positions: tuple[int, ...]) -> None:
    def is_number(position: int, arg: Any) -> bool:
        return position in positions and isinstance(arg, (Number, NumberProxy))

    def has_numbers(*args: Any) -> bool:
        has_tensor = any(isinstance(arg, TensorProxy) for arg in args)
        return has_tensor and any(is_number(position, arg) for position, arg in enumerate(args))

    def call_with_tensors(*args: Any) -> Any:
        like = next(arg for arg in args if isinstance(arg, TensorProxy))
        dtype = dtypes.bool8 if symbol is prims.where else like.dtype
        return symbol(
            *(
                ltorch.full((), arg, device=like.device, dtype=dtype) if is_number(position, arg) else arg
                for position, arg in enumerate(args)
            )
        )

    executor.register_implementation(symbol, checker=has_numbers, execution_transform=call_with_tensors)


def _compute_cross_entropy(
    logits: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, *_: Any
) -> Any:
    """Returns nvFuser's results: mean loss, maximum of each row, the rest of its log-sum-exp, number of valid rows."""
    counts = ltorch.ne(target, ignore_index)
    chosen = ltorch.gather(logits, 1, ltorch.unsqueeze(ltorch.where(counts, target, 0), 1))
    maximum = ltorch.amax(logits, 1)
    rest = ltorch.log(ltorch.sum(ltorch.exp(logits - ltorch.unsqueeze(maximum, 1)), 1))
    losses = ltorch.where(counts, maximum + rest - ltorch.squeeze(chosen, 1), 0.0)
    count = ltorch.to(ltorch.sum(counts), dtypes.float32)
    return ltorch.sum(losses) / count, maximum, rest, count


def _differentiate_cross_entropy(
    gradient: Any,
    logits: Any,
    *,
    target: Any,
    a_max: Any,
    max_log_sum_exp: Any,
    valid_indices: Any,
    ignore_index: int = -100,
    **_: Any,
) -> Any:
    """Returns the result of nvFuser's operation: the gradient of the logits."""
    columns = ltorch.unsqueeze(target, 1)
    share = ltorch.where(ltorch.ne(columns, ignore_index), gradient / valid_indices, 0.0)
    softmax = ltorch.exp(logits - ltorch.unsqueeze(a_max, 1) - ltorch.unsqueeze(max_log_sum_exp, 1))
    is_target = ltorch.eq(ltorch.arange(logits.shape[1], device=logits.device), columns)
    return softmax * share - ltorch.where(is_target, gradient / valid_indices, 0.0)


_COMPOSED: dict[Any, Callable[..., Any]] = {
    prims.lerp.id: lambda start, end, weight: ltorch.lerp(start, end, weight),
    "nv_cross_entropy_fwd": _compute_cross_entropy,
    "nv_cross_entropy_bwd": _differentiate_cross_entropy,
}
"""Implementations of operations, by id, in ltorch operations that Thunder's executor for torch has functions for."""

for _symbol, _positions in _TENSORS_ONLY.items():
    _register_with_tensors(_symbol, _positions)
for _id, _function in _COMPOSED.items():
    executor.register_implementation(_id, checker=lambda *_, **__: True, execution_transform=_function)
