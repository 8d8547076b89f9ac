"""Reads regions out of fused bound symbols, with the layouts that plain Thunder gives their values.

Plain Thunder calls torch's operation if there is one, and does not model strides. A region computes the same from
primitives, whose results may have another layout:

    torch.softmax(x, -1)                   contiguous for any strides of x
    exp(x - amax(x)) / sum(...)            strides as those of x

So when a region is made, the primitive that computes the result of such an operation gets a tag. The tag stays with it
through rematerialization. ``plain_region_of`` replaces each tag by an operation that sets the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.bound_symbols import INPUT_GPU, encode_literal, flatten, may_write, outputs_of, symbol_name
from fusioncache.ir import Arg, Declined, NumberType, Op, Ref, Region, Scope, TensorType, ValueType, operands, refs_in
from fusioncache.ir.ops import CHANNELS, CONTIGUOUS, COPY, ELEMENTWISE, VIEW, op_traits
from fusioncache.process.secrets import is_word
from fusioncache.template.simplify import remove_dead_ops
from fusioncache.thunder_adapter.api import DeviceType, OpTags, TensorProxy, proxies, torch_executor


def region_of(fusion: Any) -> Region:
    """Returns the region of a fused bound symbol. The inputs and outputs keep the order of the call.

    Raises:
        Declined: if a literal, a proxy, an operation, or an effect beside its results is not supported.
    """
    return RegionReader(fusion).read_region()


class RegionReader:
    """Reads the region in a fused bound symbol.

    Attributes:
        number: the number of each value read so far, by name.
    """

    def __init__(self, fusion: Any):
        self.fusion = fusion
        self.number: dict[str, int] = {}
        self.device = _only_device(fusion.flat_proxy_args)

    def read_region(self) -> Region:
        """Returns the region.

        Raises:
            Declined: if a part of it is not supported.
        """
        inputs = self.fusion.args
        if self.fusion.kwargs or not all(isinstance(proxy, proxies.Proxy) for proxy in inputs):
            raise Declined("an argument of the region is not a tensor or a number", Scope.REGION)
        for proxy in inputs:
            self._define(proxy.name)
        sizes = self._define_sizes(inputs)
        types = tuple(self.type_of(proxy) for proxy in inputs)
        ops = tuple(op for bound_symbol in self.fusion.subsymbols for op in self.read_ops(bound_symbol))
        check_effects(ops, len(types))
        outputs = tuple(self._known(proxy) for proxy in outputs_of(self.fusion))
        return Region(types, ops, outputs, sizes)

    def _define(self, name: str) -> None:
        if name in self.number:
            raise Declined("a value defined twice", Scope.REGION)
        self.number[name] = len(self.number)

    def _define_sizes(self, inputs: Any) -> int:
        """Numbers the symbolic sizes that are not inputs themselves, and returns their count."""
        before = len(self.number)
        for proxy in inputs:
            if isinstance(proxy, proxies.TensorProxy):
                for size in proxy._shape:
                    if isinstance(size, proxies.NumberProxy) and size.value != 1 and size.name not in self.number:
                        self._define(size.name)
        return len(self.number) - before

    def _known(self, proxy: Any) -> int:
        try:
            return self.number[proxy.name]
        except (AttributeError, KeyError):
            raise Declined("a value that no operation defines", Scope.REGION) from None

    def redefine(self, name: str) -> None:
        """Moves a name from its value to the next value."""
        self.number[f"before {len(self.number)}"] = self.number.pop(name)
        self._define(name)

    def read_ops(self, bound_symbol: Any) -> Iterator[Op]:
        """Yields the region's operations for a bound symbol."""
        name = _checked_name(bound_symbol)
        args = tuple(self._arg(arg) for arg in bound_symbol.args)
        kwargs = tuple((key, self._arg(bound_symbol.kwargs[key])) for key in sorted(bound_symbol.kwargs))
        output = bound_symbol.output
        results = tuple(output) if isinstance(output, (tuple, list)) else (output,)
        for proxy in results:
            # An unused result is None and still takes a number.
            self._define(f"unused {len(self.number)}" if proxy is None else self._name_of(proxy))
        yield Op(name, args, tuple(None if proxy is None else self.type_of(proxy) for proxy in results), kwargs)

    def _name_of(self, proxy: Any) -> str:
        if not isinstance(proxy, proxies.Proxy):
            raise Declined("a result of the region is not a tensor or a number", Scope.REGION)
        return proxy.name

    def _arg(self, arg: Any) -> Arg:
        if isinstance(arg, proxies.Proxy):
            return Ref(self._known(arg))
        if isinstance(arg, (tuple, list)):
            return tuple(self._arg(item) for item in arg)
        if type(arg) is str and not is_word(arg):
            raise Declined("a string among its arguments", Scope.REGION)
        return INPUT_GPU if arg is not None and arg is self.device else encode_literal(arg)

    def type_of(self, proxy: Any) -> ValueType:
        """Returns the type of a value."""
        if isinstance(proxy, proxies.NumberProxy):
            return NumberType(proxy.python_type.__name__)
        if type(proxy) is not proxies.TensorProxy:
            raise Declined(f"a value of type {type(proxy).__name__}", Scope.REGION)
        return TensorType(proxy.dtype.full_name, tuple(map(self._size, proxy._shape)), proxy.device.type)

    def _size(self, size: Any) -> int | Ref:
        """Returns a size. A symbolic size that was 1 when traced is a broadcast dimension, as in Thunder."""
        if not isinstance(size, proxies.NumberProxy):
            return int(size)
        return 1 if size.value == 1 else Ref(self._known(size))


def _only_device(proxies: Sequence[Any]) -> Any:
    """Returns the GPU of all GPU tensors among the inputs; None if there are several or none."""
    found = {proxy.device for proxy in proxies if isinstance(proxy, TensorProxy)}
    gpus = [device for device in found if device.devicetype is DeviceType.CUDA]
    return gpus[0] if len(gpus) == 1 else None


def check_effects(ops: Sequence[Op], inputs: int) -> None:
    """Accepts writes into inputs that are neither read nor written afterwards, because their time does not matter.

    Raises:
        Declined: if there is any other write.
    """
    copies = [op for op in ops if op.name == COPY]
    targets = {index for op in copies for _, index in refs_in(op.args[1])}
    if len(targets) < len(copies):
        raise Declined("a value written in place twice", Scope.REGION)
    written: set[int] = set()
    for op in ops if copies else ():
        if not written.isdisjoint(index for _, index in operands(op)):
            raise Declined("a value used after it was written in place", Scope.REGION)
        if op.name == COPY:
            source, target = op.args[0], op.args[1]
            if not (isinstance(target, Ref) and target.index < inputs):
                raise Declined("a value of the region written in place", Scope.REGION)
            if isinstance(source, Ref) and source.index in targets:
                raise Declined("a value written in place copied in place", Scope.REGION)
            written.add(target.index)


def _checked_name(bound_symbol: Any) -> str:
    name = symbol_name(bound_symbol.sym)
    if name is None:
        raise Declined(f"unknown operation {bound_symbol.sym.name}", Scope.REGION)
    if name == COPY:
        return name  # `check_effects` looks at it
    if may_write(bound_symbol):
        raise Declined(f"in-place effect of {name}", Scope.REGION)
    tags = _tags(bound_symbol)
    if OpTags.RANDOM_OP in tags and not op_traits(name).seeded:
        raise Declined(f"random state used by {name}", Scope.REGION)
    if OpTags.DONT_DCE in tags or OpTags.CTX_MANAGER_ENTER_EXIT_OP in tags or OpTags.DEVICE_SYNC_OP in tags:
        raise Declined(f"side effect of {name}", Scope.REGION)
    return name


def _tags(bound_symbol: Any) -> set[Any]:
    tags = set(bound_symbol.sym.tags or ())
    for inner in bound_symbol.subsymbols:
        tags |= _tags(inner)
    return tags


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
"""Operations that return new contiguous tensors for any layout of the operands."""
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
"""Operations of torch that return a new tensor even if they change nothing; Thunder then returns the operand."""
_SEVERAL_KERNELS = frozenset({"torch.prelu", "torch.where"})
"""Operations that torch computes in several steps, as the primitives do."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainLayout:
    """The tag of a primitive with the layout of its result in plain Thunder.

    Attributes:
        name: of the operation that represents the layout in a plain region.
        operands: the proxies on which the layout depends.
    """

    name: str
    operands: tuple[Any, ...] = ()


def tag_layouts(bound_symbol: Any, primitives: Sequence[Any]) -> list[Any]:
    """Returns the primitives, with tags on those whose results have another layout in plain Thunder.

    Args:
        bound_symbol: of a trace before any executor's pass.
        primitives: all primitives of it.
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
    """Yields the operations that plain Thunder calls, which it searches from the outside in."""
    if bound_symbol.sym.is_prim or torch_executor.can_execute(bound_symbol):
        yield bound_symbol
        return
    for inner in bound_symbol.subsymbols:
        yield from _find_called(inner)


def _find_layout(called: Any, maker: Any) -> PlainLayout | None:
    """Returns the layout of torch's result of an operation; None if its primitives give the same one."""
    operation, result = called.sym.id, called.output
    is_primitive = called is maker and not isinstance(operation, str)  # such as PrimIDs.ADD: in no table
    if is_primitive or not isinstance(result, TensorProxy):
        return None
    on_cpu = result.device.type == "cpu"
    if operation in _CONTIGUOUS or (on_cpu and operation in _CONTIGUOUS_ON_CPU):
        return PlainLayout(CONTIGUOUS)
    if on_cpu and operation in _CHANNELS_ON_CPU:
        return PlainLayout(CHANNELS, (called.args[0],))
    tensors = {proxy.name: proxy for proxy in called.flat_proxy_args if isinstance(proxy, TensorProxy)}
    operands = tuple(tensors.values())
    if len(operands) > 1 and operation not in _SEVERAL_KERNELS and _computes_elementwise(called, operands):
        return PlainLayout(ELEMENTWISE, operands)
    is_identity = called is not maker and op_traits(symbol_name(maker.sym) or "").identity
    return PlainLayout(VIEW) if is_identity and operation in _NEW_VIEWS else None


def _computes_elementwise(called: Any, operands: Sequence[Any]) -> bool:
    """True if several computing primitives, all elementwise, compute the result from operands that broadcast to it."""
    shape = called.output.shape
    traits = [op_traits(symbol_name(leaf.sym) or "") for leaf in flatten(called)]
    return (
        all(each.elementwise for each in traits)
        and sum(not each.shape_only for each in traits) > 1
        and all(_broadcasts(operand.shape, shape) for operand in operands)
    )


def _broadcasts(shape: Sequence[Any], result: Sequence[Any]) -> bool:
    """True if a tensor of one shape broadcasts to another shape."""
    pairs = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(own in (1, other) for own, other in pairs)


def plain_region_of(fusion: Any) -> Region | None:
    """Returns the region of a fused bound symbol with the layouts of plain Thunder.

    It has the inputs and the outputs of the region, and the operations on which layouts depend.

    Returns:
        The region; None if plain Thunder's layouts are those of the region's operations.

    Raises:
        Declined: as ``region_of`` does.
    """
    if not any(isinstance(tag, PlainLayout) for symbol in fusion.subsymbols for tag in symbol.tags):
        return None
    return remove_dead_ops(_PlainReader(fusion).read_region())


class _PlainReader(RegionReader):
    def read_ops(self, bound_symbol: Any) -> Iterator[Op]:
        """Yields the operation, and an operation that sets the layout of its result."""
        yield from super().read_ops(bound_symbol)
        layout = next((tag for tag in bound_symbol.tags if isinstance(tag, PlainLayout)), None)
        if layout is None or any(proxy.name not in self.number for proxy in layout.operands):
            return
        proxy = bound_symbol.output
        operands = (proxy,) if layout.name == VIEW else layout.operands
        args = tuple(Ref(self.number[operand.name]) for operand in operands)
        self.redefine(proxy.name)
        yield Op(layout.name, args, (self.type_of(proxy),))
