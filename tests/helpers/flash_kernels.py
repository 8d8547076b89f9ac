"""An emulation on the CPU of torch's flash attention, which Thunder calls on a GPU: step by step, with its layouts."""

from contextlib import contextmanager

import thunder.torch as ltorch
import torch
from cudnn_kernels import compute_backward, compute_forward, emulate_kernels
from thunder.executors import sdpaex
from thunder.executors.utils import SpdaBackend


def lay_out_as_query(query, other):
    """Returns ``other`` in the query's dtype, in the layout of torch's kernel: like the query with positions first."""
    return torch.empty_like(query.transpose(1, 2)).transpose(1, 2).copy_(other)


class FlashKernels:
    """Replaces torch's kernels. ``copies`` counts tensors that torch would copy: those without positions first."""

    def __init__(self):
        self.copies = 0

    def forward(self, query, key, value, dropout=0.0, is_causal=False, **rest):
        result, sums, *_ = compute_forward(query, key, value, None, True, dropout, is_causal, **rest)
        none = torch.empty(0, dtype=torch.int64)
        result = lay_out_as_query(query, result)
        return result, sums[..., 0], none, none, query.shape[-2], key.shape[-2], none, none, none

    def backward(self, gradient, query, key, value, result, sums, *rest, **scale):
        self.copies += sum(not each.transpose(1, 2).is_contiguous() for each in (gradient, result))
        query_ends, key_ends, *sizes, seed, offset = rest
        as_of_cudnn = (seed, offset, None, query_ends, key_ends, *sizes)
        found = compute_backward(gradient, query, key, value, result, sums[..., None], *as_of_cudnn, **scale)
        return tuple(map(lay_out_as_query, (query, key, value), found))


@contextmanager
def emulate_flash_attention(patch):
    kernels = FlashKernels()
    known = sdpaex.sdpa_ex.implmap
    name = ltorch.scaled_dot_product_attention.id
    patch.setattr(known[name], "checker", lambda *args, **options: True)
    patch.setattr(sdpaex, "_fused_sdp_choice", lambda *args, **options: SpdaBackend.FLASH_ATTENTION)
    patch.setattr(sdpaex, "_input_dtype_check_fused_scaled_dot_product_attention", lambda *args: None)
    with emulate_kernels("flash", kernels.forward, kernels.backward):
        yield kernels
