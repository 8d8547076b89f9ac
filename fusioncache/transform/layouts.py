"""How plain Thunder lays out the values of our regions, and how that is told where these consist of primitives.

Plain Thunder calls torch's own operation wherever there is one, and Thunder knows no strides. What our regions compute
of primitives may lie otherwise than what torch computes at once:

    torch.softmax(x, -1)                   without gaps, however x lies
    exp(x - amax(x)) / sum(...)            as x lies

So the primitive that computes the result of such an operation gets a tag when a region is made. It stays with it
wherever rematerialization takes it. ``plain_region_of`` writes layouts in the place of what has such tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.symbols import flatten, symbol_name
from fusioncache.ir import Op, Ref, Region
from fusioncache.ir.ops import CHANNELS, CONTIGUOUS, ELEMENTWISE, VIEW, op_traits
from fusioncache.template.simplify import remove_dead_ops
from fusioncache.transform.region import RegionReader

_CONTIGUOUS = frozenset(
    {
        "log_softmax_backward",
        "torch.Tensor.repeat",
        "torch.instance_norm",
        "torch.layer_norm",
        "torch.log_softmax",
        "torch.masked_fill",
        "torch.rrelu",
        "torch.softmax",
    }
)
"""Operations whose results are new tensors without gaps, in row-major order, whatever the layout of the operands."""
_CONTIGUOUS_ON_CPU = frozenset({"torch.nn.functional.logsigmoid"})
_CHANNELS_ON_CPU = frozenset({"torch.batch_norm", "torch.nn.functional.group_norm"})
_NEW_VIEWS = frozenset(
    {
        "torch.Tensor.__getitem__",
        "torch.Tensor.expand",
        "torch.Tensor.view",
        "torch.Tensor.view_as",
        "torch.movedim",
        "torch.permute",
        "torch.reshape",
        "torch.squeeze",
        "torch.transpose",
    }
)
"""Operations of torch's that return another tensor also where they have nothing to do. Thunder has no view then."""
_SEVERAL_KERNELS = frozenset({"torch.prelu", "torch.where"})
"""Operations that torch itself computes step by step, as our primitives do."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The tag of a primitive: how plain Thunder lays out its result.

    Attributes:
        name: of the operation that says so in a plain region.
        operands: the proxies on which that depends.
    """

    name: str
    operands: tuple[Any, ...] = ()


def tag_layouts(bound_symbol: Any, primitives: Sequence[Any]) -> list[Any]:
    """Returns the primitives with tags where plain Thunder lays out a result otherwise than they would.

    Args:
        bound_symbol: of a trace that no executor has looked at.
        primitives: all that it consists of.
    """
    makers = {each.output.name: index for index, each in enumerate(primitives) if hasattr(each.output, "name")}
    tagged = list(primitives)
    for called in _find_called(bound_symbol):
        index = makers.get(getattr(called.output, "name", None))
        layout = None if index is None else _find_layout(called, primitives[index])
        if index is not None and layout is not None:
            tagged[index] = tagged[index].from_bsym(tags={*tagged[index].tags, layout})
    return tagged


def _find_called(bound_symbol: Any) -> Iterator[Any]:
    """Yields the operations that plain Thunder calls, as it finds them: from the outside in."""
    from fusioncache.thunder_adapter.api import torch_executor

    if bound_symbol.sym.is_prim or torch_executor.can_execute(bound_symbol):
        yield bound_symbol
        return
    for inner in bound_symbol.subsymbols:
        yield from _find_called(inner)


def _find_layout(called: Any, maker: Any) -> Layout | None:
    """Returns how torch lays out what an operation returns, if what computes it may lay it out otherwise."""
    from fusioncache.thunder_adapter.api import TensorProxy

    operation, result = called.sym.id, called.output
    is_primitive = called is maker and not isinstance(operation, str)  # such as PrimIDs.ADD: in no table
    if is_primitive or not isinstance(result, TensorProxy):
        return None
    on_cpu = result.device.type == "cpu"
    if operation in _CONTIGUOUS or (on_cpu and operation in _CONTIGUOUS_ON_CPU):
        return Layout(CONTIGUOUS)
    if on_cpu and operation in _CHANNELS_ON_CPU:
        return Layout(CHANNELS, (called.args[0],))
    tensors = {proxy.name: proxy for proxy in called.flat_proxy_args if isinstance(proxy, TensorProxy)}
    operands = tuple(tensors.values())
    if len(operands) > 1 and operation not in _SEVERAL_KERNELS and _computes_elementwise(called, operands):
        return Layout(ELEMENTWISE, operands)
    is_identity = called is not maker and op_traits(symbol_name(maker.sym) or "").identity
    return Layout(VIEW) if is_identity and operation in _NEW_VIEWS else None


def _computes_elementwise(called: Any, operands: Sequence[Any]) -> bool:
    """Tells whether several primitives, and nothing but such, compute each element of one of each operand."""
    shape = called.output.shape
    traits = [op_traits(symbol_name(leaf.sym) or "") for leaf in flatten(called)]
    return (
        all(each.elementwise for each in traits)
        and sum(not each.shape_only for each in traits) > 1
        and all(_broadcasts(operand.shape, shape) for operand in operands)
    )


def _broadcasts(shape: Sequence[Any], result: Sequence[Any]) -> bool:
    """Tells whether a tensor of one shape stands for one of another shape, as torch's kernels have it."""
    pairs = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(own in (1, other) for own, other in pairs)


def plain_region_of(fusion: Any) -> Region | None:
    """Returns the region in a fused bound symbol as plain Thunder lays out its values.

    It has the inputs and the outputs of the region. Of what is computed it has what layouts depend on.

    Returns:
        The region; None if plain Thunder lays out all of them as the region's own operations do.

    Raises:
        Declined: what ``region_of`` raises.
    """
    if not any(isinstance(tag, Layout) for symbol in fusion.subsymbols for tag in symbol.tags):
        return None
    return remove_dead_ops(_PlainReader(fusion).read())


class _PlainReader(RegionReader):
    def read_ops(self, bound_symbol: Any) -> Iterator[Op]:
        """Yields the operation, and the layout of its result."""
        yield from super().read_ops(bound_symbol)
        layout = next((tag for tag in bound_symbol.tags if isinstance(tag, Layout)), None)
        if layout is None or any(proxy.name not in self.number for proxy in layout.operands):
            return
        proxy = bound_symbol.output
        operands = (proxy,) if layout.name == VIEW else layout.operands
        args = tuple(Ref(self.number[operand.name]) for operand in operands)
        self.redefine(proxy.name)
        yield Op(layout.name, args, (self.type_of(proxy),))
