"""An emulation on the CPU of torch's cuDNN attention: the same operations, computed step by step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fusioncache.accelerators.attention import executor


def find_scores(query: Any, key: Any, bias: Any, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Returns the scores of all keys for all queries, in float32."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
    return scores if bias is None else scores + bias


def lay_out_like(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns ``other`` in the dtype of ``one``, and if their shapes are equal also in its memory order, like torch."""
    return torch.empty_like(one).copy_(other) if one.shape == other.shape else other.to(one.dtype)


def compute_forward(
    query: Any, key: Any, value: Any, bias: Any, saves: bool, dropout: float = 0.0, is_causal: bool = False, **rest: Any
) -> Any:
    """Replaces ``_scaled_dot_product_cudnn_attention``; results that need not be returned are empty tensors."""
    assert dropout == 0.0
    assert bias is None or bias.stride(-1) == 1
    scores = find_scores(query, key, bias, is_causal, rest.get("scale"))
    sums = scores.logsumexp(-1, keepdim=True)
    result = lay_out_like(query, (scores - sums).exp() @ value.float())
    none = torch.empty(0)
    return result, sums if saves else none, none, none, query.shape[-2], key.shape[-2], none, none, none


def compute_backward(
    gradient: Any, query: Any, key: Any, value: Any, result: Any, sums: Any, *rest: Any, scale: float | None = None
) -> Any:
    _seed, _offset, bias, _query_ends, _key_ends, queries, keys, dropout, is_causal = rest
    assert (queries, keys, dropout) == (query.shape[-2], key.shape[-2], 0.0)
    assert sums.shape == (*query.shape[:-1], 1)
    weights = (find_scores(query, key, bias, is_causal, scale) - sums).exp()
    gradient = gradient.float()
    of_weights = gradient @ value.float().transpose(-1, -2)
    of_scores = weights * (of_weights - (gradient * result.float()).sum(-1, keepdim=True))
    of_scores = of_scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    of_query, of_key = of_scores @ key.float(), of_scores.transpose(-1, -2) @ query.float()
    return tuple(map(lay_out_like, (query, key, value), (of_query, of_key, weights.transpose(-1, -2) @ gradient)))


@contextmanager
def emulate_kernels(kind: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl(f"_scaled_dot_product_{kind}_attention", forward, "CPU")
    library.impl(f"_scaled_dot_product_{kind}_attention_backward", backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def emulate_cudnn(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Emulates cuDNN attention on the CPU; yields the arguments of all ``can_attend_with_cudnn`` calls so far."""
    asked: list[tuple[Any, ...]] = []

    def can_attend_with_cudnn(*given: Any) -> bool:
        asked.append(given)
        return True

    patch.setattr(executor, "can_attend_with_cudnn", can_attend_with_cudnn)
    with emulate_kernels("cudnn", compute_forward, compute_backward):
        yield asked
