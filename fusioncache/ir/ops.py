"""The traits of single operations: one table for all stages. Everything else is opaque.

A new operation is added to the row that has its traits, or to a new row, and to ``tests/ir/test_ops.py``. The table and
a compiler's arithmetic determine whether a value's bits depend on its kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from fusioncache.ir.graph import Graph, NumberType, Ref, TensorType, ValueType, operands, refs_in

ADD = "prims.add"
MUL = "prims.mul"
CONVERT = "prims.convert_element_type"
RESHAPE = "prims.reshape"
COPY = "prims.copy_"
"""``copy_(source, target)``: writes a value into the memory of a region input. Its result has the source's value."""
FULL_LIKE = "torch.full_like"
"""Makes a tensor with the strides of its operand. Primitives describe only shapes, and would lose the strides."""
CONTIGUOUS = "layout.contiguous"
"""``contiguous()``: in a plain region, a value with a row-major layout without gaps."""
CHANNELS = "layout.channels"
"""``channels(like)``: the same, but with channels last where ``like`` has them last."""
ELEMENTWISE = "layout.elementwise"
"""``elementwise(*operands)``: in a plain region, a value with the layout that a torch kernel gives it for these
operands."""
VIEW = "layout.view"
"""``view(value)``: in a plain region, the same value as another tensor with the same memory."""
RESIDUAL = "residual"
"""A left-to-right sum ``head + term + term + ...`` whose terms are region inputs.

``args`` is ``(head, dtype)`` with the dtype in which the terms are stored; head and terms are converted to the result's
dtype before they are added.
"""

Path = tuple[int | None, ...]
"""The path to an argument or a part of one: its position, its item's position, and so on. None matches any position."""


@dataclass(frozen=True, slots=True)
class OpTraits:
    """The traits of an operation. An operation that is not in the table has hardly any of these.

    Attributes:
        commutes: its two operands may be exchanged without changing a bit, except which of two NaNs results, and except
            in products of complex numbers (see ``template.simplify.Commuting``).
        identity: inside a region it returns its operand.
        conversion: its result differs from its operand only in the dtype. An identity is one, too.
        elementwise: it is cheap to compute again, and a function of its operands alone, element by element. Changes of
            shape count; reductions and random numbers do not.
        shape_only: it computes nothing: its result has its operand's elements in another shape.
        follows_types: whether it occurs, and its arguments, depend only on the types of its operands and results.
        fusible: fusioncache's fusion executor puts it into regions.
        allocates: its results have memory of their own. Results of other operations may be views of an operand, or the
            operand.
        contiguous: from contiguous tensors it makes a contiguous one, with every compiler.
        adds: a compiler may contract it with a product among its operands into one rounding.
        passes_product: for contraction, its result counts as its operand.
        never_product: its result is never the direct result of a multiplication.
        reorders_sums: it sums elements of one tensor in an order that the compiler chooses for every kernel.
        indexes: the integers among its operands may be positions in others.
        random: it draws random numbers.
        seeded: it draws them from a seed and an offset that are its operands, so that it is a function of these.
        writes: it may write into its operands. It is never dead, and comes behind all computations, because operations
            that read the target read its old content.
        never_merged: two of these with the same operands stay two: writes; draws, to be on the safe side; and residual
            chains, because of their terms.
        composite: it consists of other operations, which may be of any kind.
        common: it is so frequent in regions that a template's name omits it.
        size_arguments: paths to integer arguments that are sizes of tensors or positions in them.
        integer_arguments: paths to operands that may be any integer of 2 and more if the result is of int64, as where
            positions are computed from sizes: integer arithmetic is exact.
        scalar_arguments: paths to arguments that may be any number, and that may be given as a tensor of one element
            without changing a bit of the result.
    """

    commutes: bool = False
    identity: bool = False
    conversion: bool = False
    elementwise: bool = False
    shape_only: bool = False
    follows_types: bool = False
    fusible: bool = False
    allocates: bool = False
    contiguous: bool = False
    adds: bool = False
    passes_product: bool = False
    never_product: bool = False
    reorders_sums: bool = False
    indexes: bool = False
    random: bool = False
    seeded: bool = False
    writes: bool = False
    never_merged: bool = False
    composite: bool = False
    common: bool = False
    size_arguments: tuple[Path, ...] = ()
    integer_arguments: tuple[Path, ...] = ()
    scalar_arguments: tuple[Path, ...] = ()

    def may_be_product(self, operand_is_product: bool) -> bool:
        """Returns whether a result may be the direct result of a multiplication, inside one kernel.

        A compiler may contract ``a * b + c`` into one rounding. If both operands of an add are products, which of them
        is contracted depends on their order, so such an add does not commute bitwise.
        """
        return operand_is_product if self.passes_product else not self.never_product


_FIRST: tuple[Path, ...] = ((0,),)
_SECOND: tuple[Path, ...] = ((1,),)
_BOTH = _FIRST + _SECOND
_MATH = OpTraits(elementwise=True, fusible=True, allocates=True)
_BOUNDED = replace(_MATH, never_product=True)
_VIEW = OpTraits(elementwise=True, fusible=True, shape_only=True, passes_product=True, common=True)
_REDUCTION = OpTraits(fusible=True, allocates=True, contiguous=True)
_RANDOM = OpTraits(random=True, never_merged=True)
_WRITES = OpTraits(writes=True, never_merged=True)

# where and comparisons have no scalar_arguments, because theirs are fill values of masks and bounds of clamps. maximum
# and minimum do not commute, because they may distinguish 0.0 from -0.0 by position. Few operations pass a product on:
# exp, tanh, sin and the like are library code that may itself end in a multiplication.
_ROWS: tuple[tuple[str, OpTraits], ...] = (
    (
        "acos acosh asin asinh atan atan2 atanh bitwise_not cos cosh erf erfc exp exp2 expm1 fmod isfinite log "
        "log10 log1p log2 pow reciprocal remainder round rsqrt signbit sin sinh sqrt tan tanh trunc",
        _MATH,
    ),
    ("where", replace(_MATH, integer_arguments=((1,), (2,)))),
    ("div", replace(_MATH, scalar_arguments=_SECOND)),
    ("abs neg", replace(_MATH, passes_product=True)),
    ("ceil floor ge gt le lt maximum minimum sign", _BOUNDED),
    ("bitwise_and bitwise_or bitwise_xor eq ne", replace(_BOUNDED, commutes=True)),
    ("add", replace(_BOUNDED, commutes=True, adds=True, common=True, integer_arguments=_BOTH, scalar_arguments=_BOTH)),
    ("sub", replace(_BOUNDED, adds=True, common=True, integer_arguments=_BOTH, scalar_arguments=_BOTH)),
    ("mul", replace(_MATH, commutes=True, common=True, integer_arguments=_BOTH, scalar_arguments=_BOTH)),
    ("full", replace(_BOUNDED, contiguous=True, common=True, size_arguments=_FIRST)),
    ("lgamma", OpTraits(fusible=True)),
    ("broadcast_in_dim reshape", replace(_VIEW, follows_types=True, size_arguments=_SECOND)),
    ("squeeze", replace(_VIEW, follows_types=True)),
    ("transpose", _VIEW),
    ("convert_element_type", replace(_VIEW, conversion=True, shape_only=False, follows_types=True)),
    ("shallow_copy", OpTraits(identity=True, conversion=True, elementwise=True, fusible=True, shape_only=True)),
    ("slice_prim", OpTraits(fusible=True, shape_only=True, passes_product=True, size_arguments=((1,), (2,)))),
    ("stride_order unfold view", OpTraits(shape_only=True)),
    ("amax amin", replace(_REDUCTION, never_product=True)),
    ("sum", replace(_REDUCTION, never_product=True, reorders_sums=True)),
    ("prod var var_mean", replace(_REDUCTION, reorders_sums=True)),
    ("cat", _REDUCTION),
    ("pad", OpTraits(fusible=True, contiguous=True, size_arguments=((2, None, 0), (2, None, 1)))),
    ("iota", OpTraits(allocates=True, contiguous=True, never_product=True, size_arguments=_FIRST)),
    ("_grouped_mm convolution cumsum linear matmul", OpTraits(reorders_sums=True)),
    ("embedding_backward index_add index_put scatter_add", OpTraits(reorders_sums=True, indexes=True)),
    ("uniform_philox", replace(_RANDOM, seeded=True, contiguous=True, size_arguments=_FIRST)),
    ("get_and_update_rng_state multinomial randint randn uniform", _RANDOM),
    ("copy_ update_aliases", _WRITES),
)
_FULL_LIKE = replace(_BOUNDED, contiguous=True, follows_types=True)

TABLE: Mapping[str, OpTraits] = MappingProxyType(
    {
        **{f"prims.{name}": traits for names, traits in _ROWS for name in names.split()},
        FULL_LIKE: _FULL_LIKE,
        RESIDUAL: OpTraits(allocates=True, never_product=True, never_merged=True),
    }
)
"""The traits of each operation that is known, by its name."""

_INDEXING = ("index", "take", "gather", "scatter", "embedding", "select", "nll", "cross_entropy", "one_hot", "getitem")
_DRAWING = ("uniform", "random", "philox", "multinomial", "rng")


@cache
def op_traits(name: str) -> OpTraits:
    """Returns the traits of the operation of this name, such as ``prims.add``.

    An operation that is not in the table is opaque. Its name implies its other effects, by torch's naming rules.
    """
    return TABLE.get(name) or _opaque(name)


def _opaque(name: str) -> OpTraits:
    composite = not name.startswith("prims.")
    return OpTraits(
        composite=composite,
        reorders_sums=composite,
        writes=name.endswith("_") and not name.endswith("__"),
        indexes=any(word in name for word in _INDEXING),
        random=any(word in name for word in _DRAWING),
    )


def writes_in_place(graph: Graph) -> bool:
    """Returns whether a graph may write into its inputs."""
    return any(op_traits(op.name).writes for op in graph.ops)


def draws(graph: Graph) -> bool:
    """Returns whether a graph may draw random numbers, with a given seed or without one."""
    return any(op_traits(op.name).random for op in graph.ops)


def may_run_again(graph: Graph) -> bool:
    """Returns whether a graph that ran in part may run again from the start: it neither writes in place nor draws."""
    return not (writes_in_place(graph) or draws(graph))


def shaping_inputs(graph: Graph) -> tuple[int, ...]:
    """Returns the inputs that are numbers and decide how a tensor lies in memory: a size, or the start of a slice."""
    numbers = {index for index, type_ in enumerate(graph.inputs) if isinstance(type_, NumberType)}
    if not numbers:
        return ()
    shaping = {index for type_ in graph.inputs for _, index in refs_in(type_)}
    for op, first in reversed(list(graph.results())):
        results = {first + place for place, type_ in enumerate(op.outputs) if isinstance(type_, NumberType)}
        is_shaping = not results.isdisjoint(shaping)
        if is_shaping or not op_traits(op.name).elementwise:
            shaping.update(index for _, index in operands(op))
        shaping.update(index for type_ in op.outputs for _, index in refs_in(type_))
    return tuple(sorted(numbers & shaping))


def writes_of(graph: Graph) -> Iterator[tuple[int | None, int]]:
    """Yields each value that a graph writes in place, None for a constant, and the input into which it is written."""
    for op in graph.ops:
        if op.name == COPY:
            source, target = op.args[:2]
            assert isinstance(target, Ref)
            yield source.index if isinstance(source, Ref) else None, target.index


_NARROW = frozenset({"bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The properties of a compiler that keep a value's bits when the ops around it move to another kernel.

    Attributes:
        rounds: whether a value that the graph rounds to fewer than 32 bits is also rounded for later ops in its kernel,
            and not only where it leaves the kernel.
        contracts_alike: whether a product and the add behind it, once both are in one graph, always have one rounding
            or always two.
    """

    rounds: bool
    contracts_alike: bool


AS_WRITTEN = Arithmetic(rounds=True, contracts_alike=True)
"""The arithmetic of a compiler whose results are those of the graph, op by op, except for contraction, which the graph
alone determines."""


def is_narrow(type_: ValueType | None) -> bool:
    """Returns whether a tensor has floating-point numbers of fewer than 32 bits, which compilers compute in more."""
    if not isinstance(type_, TensorType):
        return False
    dtype = type_.dtype.rstrip("_")
    return dtype in _NARROW or dtype.startswith("float8")


def bits_depend_on_kernel(graph: Graph, arithmetic: Arithmetic) -> bool:
    """Returns whether, with this compiler's arithmetic, a value of a graph may have other bits in another kernel."""
    if not arithmetic.rounds and any(is_narrow(type_) for op in graph.ops for type_ in op.outputs):
        return True
    return not arithmetic.contracts_alike and _adds_a_product(graph)


def _adds_a_product(graph: Graph) -> bool:
    product = [False] * graph.first_result
    for op in graph.ops:
        of_product = any(product[index] for _, index in operands(op))
        traits = op_traits(op.name)
        if traits.composite or (of_product and traits.adds):
            return True
        product += [traits.may_be_product(of_product)] * len(op.outputs)
    return False
