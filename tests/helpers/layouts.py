"""Layouts of tensors, and torch functions, some of whose results have the layouts of their arguments."""

from functools import partial

import torch
import torch.nn.functional as F

SHAPES = (2, 3, 4, 5), (1, 3, 4, 1)


def in_order(*slowest_to_fastest):
    """Returns a function that copies a tensor with these dimensions slowest in memory, in order, before the others."""

    def lay(tensor):
        order = [each for each in slowest_to_fastest if each < tensor.ndim]
        order += [each for each in range(tensor.ndim) if each not in order]
        return tensor.permute(order).contiguous().permute([order.index(each) for each in range(tensor.ndim)])

    return lay


def expand(dimension, tensor):
    return tensor.narrow(dimension, 0, 1).clone().expand(tensor.shape) if tensor.ndim else tensor


def leave_gaps(tensor):
    wide = tensor.new_zeros([size + 2 for size in tensor.shape])
    part = wide[tuple(slice(1, 1 + size) for size in tensor.shape)]
    part.copy_(tensor)
    return part


def step(tensor):
    if not tensor.ndim:
        return tensor
    wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
    wide[..., ::2] = tensor
    return wide[..., ::2]


def stride_oddly(tensor):
    """Returns a contiguous copy, with odd strides where these mean nothing: in dimensions of one element."""
    tensor = tensor.contiguous().clone()
    strides = [7 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


LAYOUTS = {
    "contiguous": in_order(),
    "transposed": in_order(3, 2, 1, 0),
    "channels last": in_order(0, 2, 3, 1),
    "permuted": in_order(1, 0),
    "expanded": partial(expand, 0),
    "expanded in the last dimension": partial(expand, -1),
    "with gaps": leave_gaps,
    "sliced with a step": step,
    "of one element": stride_oddly,
}

_UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor isfinite lgamma log log10 log1p "
    "log2 neg reciprocal round rsqrt sigmoid sign signbit sin sinh sqrt square tan tanh trunc"
)
_ACTIVATIONS = "celu elu gelu hardswish leaky_relu logsigmoid mish relu relu6 rrelu selu silu softplus tanhshrink"
_WITH_NUMBER = "add div eq fmod ge gt le lt mul ne pow remainder sub"
_BINARY = "add atan2 div eq fmod ge gt le lt maximum minimum mul ne pow remainder sub"


def _each(names, call, named="{}", module=torch):
    return {named.format(name): partial(call, getattr(module, name)) for name in names.split()}


CASES = {
    **_each(_UNARY, lambda function, x, y, m: function(x)),
    **_each(_ACTIVATIONS, lambda function, x, y, m: function(x), module=F),
    **_each(_BINARY, lambda function, x, y, m: function(x, y)),
    **_each(_WITH_NUMBER, lambda function, x, y, m: function(x, 1.5), "{} a number"),
    **_each("add div mul pow remainder sub", lambda function, x, y, m: function(1.5, x), "a number {}"),
    "bitwise": lambda x, y, m: (m & (x > y), m | (x > y), m ^ (x > y), ~m),
    "where": lambda x, y, m: torch.where(m, x, y),
    "where numbers": lambda x, y, m: (torch.where(m, x, 1.0), torch.where(m, 1.0, y)),
    "clamp": lambda x, y, m: (x.clamp(0.2, 0.8), torch.clamp(x, y, y + 1)),
    "addcmul": lambda x, y, m: (torch.addcmul(x, y, x + y), torch.addcdiv(x, y, x + y)),
    "masked_fill": lambda x, y, m: x.masked_fill(m, 0.5),
    "masked_fill a mask for all": lambda x, y, m: x.masked_fill(m[:1, :, :1], 0.5),
    "nan_to_num": lambda x, y, m: torch.nan_to_num(x),
    "half": lambda x, y, m: x.to(torch.bfloat16),
    "half add": lambda x, y, m: x.bfloat16() + y.bfloat16(),
    "half mul of a row": lambda x, y, m: y[0, 0, 0].bfloat16() * x.bfloat16(),
    "promoted": lambda x, y, m: (m + x, x * m, x.bfloat16() * y),
    "zeros_like": lambda x, y, m: (torch.zeros_like(x), torch.ones_like(x) + y, torch.full_like(x, 3.0) * y),
    "full": lambda x, y, m: torch.full((3, 4), 2.0) + x[0, 0, :3, :4],
    "softmax": lambda x, y, m: (torch.softmax(x, -1), torch.softmax(x, 1), F.softmin(x, 0)),
    "softmax and more": lambda x, y, m: torch.softmax(x, -1) * 1.0,
    "softmax of more": lambda x, y, m: torch.softmax(x * y + 1, 2) + y,
    "softmax and less": lambda x, y, m: torch.softmax(x, -1).sum(1),
    "softmax in half": lambda x, y, m: (torch.softmax(x, -1, dtype=torch.float64), torch.softmax(x.bfloat16(), -1)),
    "log_softmax": lambda x, y, m: (F.log_softmax(x, -1), F.log_softmax(x, 1) - y),
    "layer_norm": lambda x, y, m: (F.layer_norm(x, x.shape[3:]), F.layer_norm(x, x.shape[2:], x[0, 0], y[0, 0]) * 2),
    "rms_norm": lambda x, y, m: F.rms_norm(x, x.shape[3:]),
    "group_norm": lambda x, y, m: F.group_norm(x, 1),
    "batch_norm": lambda x, y, m: F.batch_norm(x, x[0, :, 0, 0], y[0, :, 0, 0].abs()),
    "sum": lambda x, y, m: (x.sum(1), x.sum((0, 2), keepdim=True), x.sum()),
    "mean": lambda x, y, m: (x.mean(-1), x.mean((1, 3), keepdim=True)),
    "amax": lambda x, y, m: (x.amax(1), x.amin((0, -1), keepdim=True)),
    "var": lambda x, y, m: (x.var(1), x.var((0, 2), correction=0), *torch.var_mean(x, (1, 3), keepdim=True)),
    "prod": lambda x, y, m: x.prod(2),
    "all": lambda x, y, m: (torch.all(m, 1), torch.any(m, -1)),
    "logsumexp": lambda x, y, m: torch.logsumexp(x, 1),
    "cumsum": lambda x, y, m: x.cumsum(1) + 1,
    "cat": lambda x, y, m: (torch.cat([x, y], 1), torch.stack([x, y], 2)),
    "pad": lambda x, y, m: F.pad(x, (1, 2, 0, 1)),
    "glu": lambda x, y, m: F.glu(x, 2),
    "mse_loss": lambda x, y, m: F.mse_loss(x, y, reduction="none"),
    "outer": lambda x, y, m: torch.outer(x[0, 0, :, 0], y[0, 0, 0]),
    "transpose": lambda x, y, m: ((x + 1).transpose(1, 3), x.sin().permute(0, 2, 3, 1), (x * y).mT),
    "reshape": lambda x, y, m: ((x + 1).reshape(3, -1), x.sin().flatten(1, 2), torch.softmax(x, -1).reshape(-1, 4)),
    "unsqueeze": lambda x, y, m: ((x + 1).unsqueeze(1), x.sin()[:, None, :1], x.sum(1, keepdim=True).squeeze(1)),
    "slice": lambda x, y, m: ((x + 1)[:, 1:], x.sin()[..., ::2], torch.softmax(x, 1)[:, :2]),
    "expand": lambda x, y, m: ((x + 1)[:1].expand(4, -1, -1, -1), x.sin()[:1].expand(y.shape) * y),
    "repeat": lambda x, y, m: (x[:1].expand(y.shape).repeat(1, 1, 2, 1), x.sin().repeat(2, 1, 1, 1)),
    "no dimension": lambda x, y, m: (x.sum() + 1, torch.softmax(x.sum(), 0), x[0, 0, 0, 0] * y),
    "attention": lambda x, y, m: torch.softmax((x * 0.5 + y).masked_fill(m, -1e9), -1).transpose(1, 2) * 1.0,
}
"""Functions of two tensors of numbers and a boolean one. Together they use every claimed operation."""


def make_arguments(lays, shape=SHAPES[0]):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(tuple(shape), generator=generator) + 0.25 for _ in range(2))
    return [lay(tensor) for lay, tensor in zip(lays, (x, y, x > y), strict=True)]


def strides_of(results, *, apparent=False):
    """Returns shape and strides of each result; ``apparent`` omits strides of dimensions of one element."""
    found = []
    for each in results if isinstance(results, tuple) else (results,):
        strides = zip(each.shape, each.stride(), strict=True)
        found.append((tuple(each.shape), tuple(stride for size, stride in strides if size > 1 or not apparent)))
    return found
