"""The way from a template and its parameters to graphs without parameters, which is what backends compile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusioncache.ir import Const, Graph, Op, Ref, TensorType, ValueType, map_type
from fusioncache.ir.ops import ADD, CONVERT, RESIDUAL
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import Arities, fold_widths
from fusioncache.template.writer import GraphWriter


def inline(template: Graph, arities: Arities) -> Graph:
    """Returns the template with the adds of its residual chains written out.

    Its inputs are the template's, then the terms, chain by chain. It is bitwise the same as the region.
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


@dataclass(frozen=True, slots=True)
class Fold:
    """One launch that adds terms to a sum. ``graph`` takes the sum so far, then the terms."""

    graph: Graph
    terms: range


@dataclass(frozen=True, slots=True)
class ChainFolds:
    """How one residual chain is summed: where it starts, what is added, its sum's dtype, and what is launched."""

    head: int
    terms: range
    dtype: str
    folds: tuple[Fold, ...]


@dataclass(frozen=True, slots=True)
class Core:
    """The rest of a template once its chains are summed.

    Attributes:
        graph: None if nothing is left to compute.
        arguments: for each input of ``graph``, the template's input, or that many more than there are: a chain's sum.
        results: for each output of the template, the output of ``graph``, or that many more than there are: a chain's
            sum, which leaves as it is.
    """

    graph: Graph | None
    arguments: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """A template compiled in parts: each chain by folds, then the core. The core is the same for every arity.

    It is bitwise the same as the region as far as ``plan.folding_is_bitwise``: the chain's order is kept, partial sums
    between kernels keep the dtype in which the region computes them, and no product crosses into another kernel.
    """

    chains: tuple[ChainFolds, ...]
    core: Core


def fold(template: Graph, arities: Arities) -> Folded:
    """Takes the residual chains out of a template."""
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
    return ChainFolds(_head(op), terms, _sum_type(op).dtype, tuple(folds))


def _fold_graph(op: Op, sum_type: ValueType, width: int) -> Graph:
    writer = GraphWriter(Graph((sum_type, *[_term_type(op)] * width), (), ()))
    writer.move(0, _write_sum(writer, op, 0, range(1, width + 1)))
    return writer.graph([0])


def _write_sum(writer: GraphWriter, residual: Op, head: int, terms: range) -> int:
    """Writes out a residual chain on values of the new graph; returns the number of the sum."""
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
