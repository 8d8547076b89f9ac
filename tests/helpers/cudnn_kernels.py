"""torch's attention by cuDNN, played on a CPU: the same operations, computed step by step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fusioncache.accelerators.attention import executor


def find_scores(
    query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Returns the scores of all keys for all queries, in float32."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
    return scores if bias is None else scores + bias


def lay_out_like(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the dtype of another one, and if it has its shape also in its order, as torch does."""
    return torch.empty_like(one).copy_(other) if one.shape == other.shape else other.to(one.dtype)


def play_forward(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    saves: bool,
    dropout: float = 0.0,
    is_causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Stands for ``_scaled_dot_product_cudnn_attention``; what it need not return is nothing that can be used."""
    assert dropout == 0.0
    assert bias is None or bias.stride(-1) == 1
    scores = find_scores(query, key, bias, is_causal, scale)
    sums = scores.logsumexp(-1, keepdim=True)
    result = lay_out_like(query, (scores - sums).exp() @ value.float())
    none = torch.empty(0)
    sums = sums if saves else none
    return result, sums, none, none, query.shape[-2], key.shape[-2], none, none, none


def play_backward(
    gradient: Any,
    query: Any,
    key: Any,
    value: Any,
    result: Any,
    sums: Any,
    seed: Any,
    offset: Any,
    bias: Any,
    query_ends: Any,
    key_ends: Any,
    queries: int,
    keys: int,
    dropout: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Any:
    """Stands for ``_scaled_dot_product_cudnn_attention_backward``."""
    assert (queries, keys, dropout) == (query.shape[-2], key.shape[-2], 0.0)
    assert sums.shape == (*query.shape[:-1], 1)
    weights = (find_scores(query, key, bias, is_causal, scale) - sums).exp()
    gradient = gradient.float()
    of_weights = gradient @ value.float().transpose(-1, -2)
    of_scores = weights * (of_weights - (gradient * result.float()).sum(-1, keepdim=True))
    of_scores = of_scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    found = (
        of_scores @ key.float(),
        of_scores.transpose(-1, -2) @ query.float(),
        weights.transpose(-1, -2) @ gradient,
    )
    return tuple(map(lay_out_like, (query, key, value), found))


@contextmanager
def play_cudnn(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Has a CPU compute attention as a GPU with cuDNN does; gives what torch was asked about each, by then."""
    asked: list[tuple[Any, ...]] = []
    own = executor.can_attend_with_cudnn

    def can_attend(*given: Any) -> bool:
        asked.append(given)
        return True

    can_attend.__name__ = own.__name__
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_cudnn_attention", play_forward, "CPU")
    library.impl("_scaled_dot_product_cudnn_attention_backward", play_backward, "CPU")
    patch.setattr(executor, "can_attend_with_cudnn", can_attend)
    try:
        yield asked
    finally:
        library._destroy()
