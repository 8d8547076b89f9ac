"""How a trace's values will lie in memory, as far as the trace says: regions can be compiled for that before they run.

A wrong guess costs a compilation that no call uses: what is not known is not guessed. Inputs count as contiguous. The
results of a region lie as ``cache/results.py`` will put them, or else as nvFuser writes them: without gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusioncache.backends.bound_symbols import outputs_of
from fusioncache.cache.results import expect_layouts
from fusioncache.ir import Binding, Graph, TensorType, operands
from fusioncache.ir.ops import RESHAPE, op_traits
from fusioncache.ir.template import ArgumentLayouts
from fusioncache.template.strides import Strided, row_major, strides_of
from fusioncache.transform.shared_region import SharedRegion

_VIEWS = frozenset({"permute", "transpose", "expand", "unsqueeze", "squeeze", "reshape"})
_VIEW_IMPLEMENTATIONS = ("torch_slice_prim_impl", "torch_prims_reshape_impl")
_CONTIGUOUS = frozenset({"linear", "matmul", "_grouped_mm", "embedding", "embedding_backward", "arange"})
"""Operations of torch's whose results are contiguous, however their operands lie: of grouped products those that have
rows of a multiple of 16 bytes, as nearly all do."""
_GRADIENTS: Mapping[str, int] = {"grouped_mm_left_gradient": 1, "grouped_mm_right_gradient": 2}
"""Those whose result lies as one of their operands, and at which place that is."""
_FLASH_BACKWARD = "sdpafx_scaled_dot_product_efficient_attention_backward"
"""Thunder's name for the backward pass of flash attention."""
_FLASH_MULTIPLE = 8
"""Heads of other sizes are padded for it."""

Layouts = dict[str, Strided | None]
"""By name, the layout of values that are not contiguous; None where it is not known."""


class Foresight:
    """The layouts of the values of a trace.

    Args:
        before: those of values of the forward trace.
    """

    def __init__(self, before: Mapping[str, Strided | None] | None = None):
        self.layouts: Layouts = dict(before or {})

    def read_trace(self, trace: Any, regions: Mapping[int, SharedRegion]) -> None:
        """Reads a trace.

        Args:
            trace: to be read.
            regions: by the position of their fused call.
        """
        for position, symbol in enumerate(trace.bound_symbols):
            if symbol.sym.is_fusion:
                self._read_region(symbol, regions.get(position))
            else:
                self._read_call(symbol)

    def layouts_of(self, fusion: Any, binding: Binding) -> ArgumentLayouts | None:
        """Returns how the arguments of a region's template will lie; None if that is not known of one of them."""
        found = [self._layout_of(fusion.args[position]) for position in binding.arguments]
        known = tuple((value.shape, value.strides) for value in found if value is not None)
        return known if len(known) == len(found) else None

    def _layout_of(self, proxy: Any) -> Strided | None:
        shape = _shape_of(proxy)
        return None if shape is None else self.layouts.get(proxy.name, row_major(shape))

    def _note(self, proxy: Any, layout: Strided | None) -> None:
        """Takes note of a layout, if it is not the one that is assumed."""
        if layout is None or not layout.is_contiguous:
            self.layouts[proxy.name] = layout

    def _read_region(self, fusion: Any, region: SharedRegion | None) -> None:
        outputs = outputs_of(fusion)
        found: Sequence[Strided | None] = [None] * len(outputs)
        if region is not None:
            inputs = [self._layout_of(proxy) for proxy in fusion.args]
            if region.executables.backend.lays_out_as_torch:
                found = expect_layouts(region.instance.plain or region.instance.region, inputs)
            else:
                found = _follow_views(region.region, inputs)
        for proxy, layout in zip(outputs, found, strict=True):
            self._note(proxy, layout)

    def _read_call(self, symbol: Any) -> None:
        name, results = symbol.sym.name, symbol.flat_proxy_outs
        if not results or str(symbol.sym.id).startswith("PrimIDs.UNPACK") or name in _CONTIGUOUS:
            return
        try:
            found = self._ask_torch(symbol, name)
        except Exception:  # whatever it is, it is not known
            found = []
        for index, proxy in enumerate(results):
            self._note(proxy, found[index] if len(found) == len(results) else None)

    def _ask_torch(self, symbol: Any, name: str) -> Sequence[Strided | None]:
        """Returns what torch gives the results of an operation, without computing any; none where that is not known."""
        import torch

        if name in _VIEWS:
            function: Callable[..., Any] = getattr(torch.Tensor, name)
        elif name in _VIEW_IMPLEMENTATIONS:
            function = symbol._call_ctx[name]
        elif name == _FLASH_BACKWARD and symbol.args[1].shape[-1] % _FLASH_MULTIPLE == 0:
            return [_lie_alike(self._layout_of(proxy)) for proxy in symbol.args[1:4]]
        elif name in _GRADIENTS:
            layout = self._layout_of(symbol.args[_GRADIENTS[name]])
            return [layout] if layout is not None and layout.is_contiguous else []
        else:
            return []
        layouts = [self._layout_of(arg) if hasattr(arg, "name") else arg for arg in symbol.args]
        if None in layouts:
            return []
        args = [_make_meta(arg) if isinstance(arg, Strided) else arg for arg in layouts]
        return [_describe(function(*args, **symbol.kwargs))]


def _make_meta(layout: Strided) -> Any:
    import torch

    return torch.empty_strided(layout.shape, layout.strides, device="meta")


def _lie_alike(heads: Strided | None) -> Strided | None:
    """Returns the layout of what flash attention makes for the gradient of such heads: it has them second to last."""
    import torch

    if heads is None:
        return None
    return _describe(torch.empty_like(_make_meta(heads).transpose(1, 2)).transpose(1, 2))


def _describe(tensor: Any) -> Strided:
    return Strided(tuple(tensor.shape), tuple(tensor.stride()))


def _shape_of(proxy: Any) -> tuple[int, ...] | None:
    """Returns the shape of a tensor; None for what is none, and for one with symbolic sizes."""
    shape = getattr(proxy, "_shape", None)
    return tuple(shape) if shape is not None and all(type(size) is int for size in shape) else None


def _follow_views(region: Graph, inputs: Sequence[Strided | None]) -> list[Strided | None]:
    """Returns how the results of a region lie: views of its inputs as these do, all else contiguous."""
    values: list[Strided | None] = [*inputs, *[None] * region.sizes]
    computed = [False] * len(values)
    for op, _ in region.results():
        sources = [index for _, index in operands(op)]
        view = op_traits(op.name).shape_only and len(sources) == 1 and not computed[sources[0]]
        for type_ in op.outputs:
            values.append(_follow(op, values[sources[0]] if view else None, type_, view=view))
            computed.append(not view)
    return [values[index] for index in region.outputs]


def _follow(op: Any, source: Strided | None, type_: Any, *, view: bool) -> Strided | None:
    if not isinstance(type_, TensorType):
        return None
    shape = tuple(size for size in type_.shape if isinstance(size, int))
    if len(shape) < len(type_.shape):
        return None
    if not view:
        return row_major(shape)
    if source is None:
        return None
    # Where a reshape can be a view it is one, and torch knows where.
    return _describe(_make_meta(source).reshape(shape)) if op.name == RESHAPE else strides_of(op, [source], shape)
