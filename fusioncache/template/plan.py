"""Plans for residual chains: a template is compiled for a number of terms either inline or by folds.

Both plans are written out here as graphs without parameters, which backends compile. ``rules_of`` derives from the
graph alone which bits of the results must be those of the region. docs/how-it-works.md lists the same rewrites.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import sqrt
from types import MappingProxyType

from fusioncache.ir import AS_WRITTEN, Arithmetic, Const, Graph, Op, Ref, TensorType, ValueType, map_type, operands
from fusioncache.ir.ops import ADD, CONVERT, RESIDUAL, bits_depend_on_kernel, op_traits, writes_in_place, writes_of
from fusioncache.template.canonical import canonicalize
from fusioncache.template.writer import GraphWriter

FOLD_WIDTHS = (32, 16, 8, 4, 2, 1)
"""How many terms one fold adds. Few widths, so that all are soon compiled: chains of up to 32 terms use all of them.

Of the sets compared on an H200 (``results/h200/fold-widths.json``), this one comes closest to the bandwidth,
whichever fold is first: on average 1.3 to 1.5 times its floor for bfloat16 and 1.1 to 1.3 times for float32,
with terms of 4 MB and more. With (8, 4, 2, 1) it is 1.3 to 1.6 times and 1.2 to 1.4 times."""

_EXACT = frozenset({"float32", "float64", "complex64", "complex128"})

INLINE_ARITIES = 2
INLINE_TERMS = 4


class Plan(Enum):
    """How a region's residual chains are summed.

    ``INLINE``: the adds stay in the template's kernel, which is compiled for this number of terms.
    ``FOLD``: kernels of a few fixed widths sum the terms, then the template's core takes the sum as one input.
    """

    INLINE = "inline"
    FOLD = "fold"


Arities = tuple[int, ...]


def choose_plan(
    template: Graph,
    arities: Arities,
    all_arities: Iterable[Arities],
    requested: Plan | None = None,
    arithmetic: Arithmetic = AS_WRITTEN,
) -> Plan:
    """Returns the plan for one region.

    A model without recompute has one or two short residual adds in a region, and the same few arities in every layer.
    These are inlined, so that its kernels stay the same. Under recompute the arities grow with the depth: then the core
    is compiled once, for any number of them.

    Args:
        template: the region's template.
        arities: the number of terms of each chain of the region.
        all_arities: the arities of all regions of the trace that have this template.
        requested: the plan that the user requested. A fold that would not preserve every bit is never chosen.
        arithmetic: of the compiler. Where a value's bits depend on the rest of its kernel, nothing is folded.
    """
    if requested is Plan.INLINE or not arities:
        return Plan.INLINE
    few = len(set(all_arities)) <= INLINE_ARITIES
    short = all(arity <= INLINE_TERMS for arity in arities)
    small = few and short and requested is None
    return (
        Plan.INLINE
        if small or not folding_is_bitwise(template) or bits_depend_on_kernel(template, arithmetic)
        else Plan.FOLD
    )


def folding_is_bitwise(template: Graph) -> bool:
    """Returns whether the fold plan preserves every bit that it must preserve.

    The chain's sum always has the region's bits. But nvFuser schedules a reduction by the number of tensors that its
    kernel reads, so a reduction behind the chain may add its elements in another order. In lower precisions that is
    accepted: two of Thunder's regions with different numbers of terms differ in the same way. With float32 terms the
    result must be bitwise that of the region, so such a template is inlined. A template that writes in place is inlined
    as well: it is compiled from the region as Thunder wrote it.
    """
    stored_exactly = any(
        op.name == RESIDUAL and isinstance(op.args[1], Const) and op.args[1].text.rstrip("_") in _EXACT
        for op in template.ops
    )
    if writes_in_place(template):
        return False
    return not (stored_exactly and any(op_traits(op.name).reorders_sums for op in template.ops))


def fold_widths(arity: int) -> tuple[int, ...]:
    """Returns the widths of the folds that add ``arity`` terms, widest first."""
    widths: list[int] = []
    for width in FOLD_WIDTHS:
        count, arity = divmod(arity, width)
        widths += [width] * count
    return tuple(widths)


def inline(template: Graph, arities: Arities) -> Graph:
    """Returns the template with the adds of its residual chains written out.

    Its inputs are the template's, then the terms, chain by chain. The result is bitwise that of the region.
    """
    residuals = [op for op in template.ops if op.name == RESIDUAL]
    terms = [_term_type(op) for op, arity in zip(residuals, arities, strict=True) for _ in range(arity)]
    writer = GraphWriter(template, tuple(terms))
    next_term, waiting = len(template.inputs), iter(arities)
    for op, first in template.results():
        if op.name != RESIDUAL:
            writer.copy(op, first)
            continue
        numbers = range(next_term, next_term + next(waiting))
        writer.move(first, _write_sum(writer, op, writer.new(_head(op)).index, numbers))
        next_term = numbers.stop
    return writer.graph(template.outputs)


def list_graphs(template: Graph, arities: Arities) -> tuple[Graph, ...]:
    """Returns each graph that may be compiled for a template with these numbers of terms."""
    folded = fold(template, arities)
    folds = (step.graph for chain in folded.chains for step in chain.folds)
    core = () if folded.core.graph is None else (folded.core.graph,)
    return inline(template, arities), *core, *folds


@dataclass(frozen=True, slots=True)
class Fold:
    """One launch that adds terms to a sum. ``graph`` takes the sum so far, then the terms."""

    graph: Graph
    terms: range


@dataclass(frozen=True, slots=True)
class ChainFolds:
    """The folds of one residual chain, and the number of its head among the template's inputs."""

    head: int
    folds: tuple[Fold, ...]


@dataclass(frozen=True, slots=True)
class Core:
    """The rest of a template once its chains are summed.

    Attributes:
        graph: None if nothing is left to compute.
        arguments: for each input of ``graph``, the number of a template's input. Larger numbers are the chains' sums.
        results: for each output of the template, the number of an output of ``graph``. Larger numbers are the chains'
            sums, which are returned unchanged.
    """

    graph: Graph | None
    arguments: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """A template compiled in parts: each chain by folds, then the core. The core is the same for every arity.

    It is bitwise the same as the region within the limits of ``folding_is_bitwise``: the chain's order is preserved,
    partial sums between kernels have the dtype in which the region computes them, and no product moves to another
    kernel.
    """

    chains: tuple[ChainFolds, ...]
    core: Core


def fold(template: Graph, arities: Arities) -> Folded:
    """Returns a template split into the folds of its residual chains and the core."""
    residuals = [op for op in template.ops if op.name == RESIDUAL]
    chains, start = [], len(template.inputs)
    for op, arity in zip(residuals, arities, strict=True):
        chains.append(_chain_folds(template, op, range(start, start + arity)))
        start += arity
    return Folded(tuple(chains), _core(template))


def _chain_folds(template: Graph, op: Op, terms: range) -> ChainFolds:
    sum_type = template.inputs[_head(op)]
    folds, start = [], terms.start
    for width in fold_widths(len(terms)):
        folds.append(Fold(_fold_graph(op, sum_type, width), range(start, start + width)))
        sum_type, start = _sum_type(op), start + width
    return ChainFolds(_head(op), tuple(folds))


def _fold_graph(op: Op, sum_type: ValueType, width: int) -> Graph:
    writer = GraphWriter(Graph((sum_type, *[_term_type(op)] * width), (), ()))
    writer.move(0, _write_sum(writer, op, 0, range(1, width + 1)))
    return writer.graph([0])


def _write_sum(writer: GraphWriter, residual: Op, head: int, terms: range) -> int:
    """Writes out a residual chain on values of the new graph. Returns the number of the sum."""
    result = map_type(_sum_type(residual), writer.new)

    def convert(value: int) -> Ref:
        type_ = writer.types[value]
        if isinstance(type_, TensorType) and type_.dtype == result.dtype:
            return Ref(value)
        return Ref(writer.append(Op(CONVERT, (Ref(value), Const("dtype", result.dtype)), (result,))))

    total = convert(head)
    for term in terms:
        total = Ref(writer.append(Op(ADD, (total, convert(term)), (result,))))
    return total.index


def _core(template: Graph) -> Core:
    residuals = [(op, first) for op, first in template.results() if op.name == RESIDUAL]
    sums = {first: index for index, (_, first) in enumerate(residuals)}
    sum_types = tuple(_sum_type(op) for op, _ in residuals)
    writer = GraphWriter(template, sum_types)
    for value, position in sums.items():
        writer.move(value, len(template.inputs) + position)
    for op, first in template.results():
        if op.name != RESIDUAL:
            writer.copy(op, first)
    computed = [value for value in template.outputs if value not in sums]
    leaving = {value: len(computed) + position for value, position in sums.items()}
    if not computed:
        return Core(None, (), tuple(leaving[value] for value in template.outputs))
    canonical = canonicalize(writer.graph(computed), chains=False)
    output = leaving | dict(zip(computed, canonical.binding.outputs, strict=True))
    return Core(canonical.graph, canonical.binding.slots, tuple(output[value] for value in template.outputs))


def _head(op: Op) -> int:
    assert isinstance(op.args[0], Ref)
    return op.args[0].index


def _term_type(op: Op) -> TensorType:
    dtype = op.args[1]
    assert isinstance(dtype, Const)
    return replace(_sum_type(op), dtype=dtype.text)


def _sum_type(op: Op) -> TensorType:
    accumulated = op.outputs[0]
    assert isinstance(accumulated, TensorType)
    return accumulated


UNITS: Mapping[str, float] = MappingProxyType(
    {
        "float8_e5m2": 2.0**-2,
        "float8_e5m2fnuz": 2.0**-2,
        "float8_e4m3fn": 2.0**-3,
        "float8_e4m3fnuz": 2.0**-3,
        "bfloat16": 2.0**-7,
        "float16": 2.0**-10,
        "complex32": 2.0**-10,
        "float32": 2.0**-23,
        "complex64": 2.0**-23,
        "float64": 2.0**-52,
        "complex128": 2.0**-52,
    }
)
"""The distance from 1 to the next larger number, by dtype. Compilers sum in float32 at least."""

ALLOWED_UNITS = 2


@dataclass(frozen=True, slots=True)
class Reordered:
    """A value that depends on a sum whose elements may be added in another order.

    Attributes:
        dtype: the coarsest one in which the value was stored since.
        added: how many elements are added, as far as sizes are static.
    """

    dtype: str
    added: int

    @property
    def relative(self) -> float:
        """Returns the allowed error of an element, as a fraction of the largest magnitude of its tensor.

        Two units of the coarsest dtype: a last bit that changes before the value is rounded moves it by one, and a
        value computed from it by another. The order itself costs units of the dtype of the addition. As for all errors
        of a sum, their number grows with the square root of the number of elements.
        """
        unit = UNITS[self.dtype]
        return ALLOWED_UNITS * max(unit, sqrt(self.added) * min(unit, UNITS["float32"]))

    def __str__(self) -> str:
        return f"a sum of {self.added} in any order, kept in {self.dtype}"


@dataclass(frozen=True, slots=True)
class Rules:
    """The bits that results of a template must have; None means that every bit must be the same.

    Attributes:
        outputs: for each output.
        writes: for each input that the template writes in place, by its position.
    """

    outputs: tuple[Reordered | None, ...]
    writes: Mapping[int, Reordered | None]


def keeps_every_bit(template: Graph, plan: Plan, *, alike: bool) -> bool:
    """Returns whether all of a region's results have the bits of the region compiled alone.

    Args:
        template: the region's template.
        plan: how its residual chains are summed.
        alike: whether the code compiled for the template is from exactly the definition that Thunder wrote for this
            region.
    """
    if plan is Plan.INLINE:
        return alike
    # ``choose_plan`` takes no fold that may change a bit that must stay: a fold that does is an error.
    return not folding_is_bitwise(template)


def rules_of(template: Graph, *, exact: bool) -> Rules:
    """Returns the rule for each result. With ``exact``, every bit of all results must be the same."""
    reordered = {} if exact else reordered_values(template)
    writes = {target: None if source is None else reordered.get(source) for source, target in writes_of(template)}
    return Rules(tuple(map(reordered.get, template.outputs)), MappingProxyType(writes))


def reordered_values(graph: Graph) -> Mapping[int, Reordered]:
    """Returns the floating-point values that depend on elements added in an order that the compiler chooses.

    A value of another kind, such as a comparison with a mean, has no last bit to differ in. It is left out, but a value
    computed from it is included.
    """
    types = graph.types
    behind: dict[int, Reordered] = {}
    for op, first in graph.results():
        used = [index for _, index in operands(op)]
        sources = [behind[index] for index in used if index in behind]
        if op_traits(op.name).reorders_sums:
            sources += _sums(op, [types[index] for index in used])
        for index, type_ in enumerate(op.outputs):
            if sources:
                behind[first + index] = _coarsest([*sources, *_own_rounding(type_)])
    return {index: found for index, found in behind.items() if list(_own_rounding(types[index]))}


def _coarsest(values: list[Reordered]) -> Reordered:
    return Reordered(max(values, key=lambda value: UNITS[value.dtype]).dtype, max(value.added for value in values))


def _sums(op: Op, operands_: list[ValueType | None]) -> Iterator[Reordered]:
    """Yields the sum that an op's results depend on, with the finest dtype."""
    results = [type_.elements for type_ in op.outputs if isinstance(type_, TensorType)]
    fewest = max(1, min(results, default=1))
    added = [1]
    for type_ in operands_:
        if isinstance(type_, TensorType):
            # Some ops sum over all dimensions that the result lacks. Matrix products and running sums sum over one.
            added += [type_.elements // fewest, *(size for size in type_.shape if isinstance(size, int))]
    yield Reordered("float64", max(added))


def _own_rounding(type_: ValueType | None) -> Iterator[Reordered]:
    dtype = type_.dtype.rstrip("_") if isinstance(type_, TensorType) else ""
    if dtype in UNITS:
        yield Reordered(dtype, 1)
