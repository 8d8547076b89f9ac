"""From a template and its parameters to graphs without parameters, which is what backends compile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fusioncache.ir import Const, Graph, Op, Ref, TensorType, ValueType, map_type
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import Arities, fold_widths
from fusioncache.template.simplify import rename_operands
from fusioncache.template.vocabulary import ADD, CONVERT, RESIDUAL


def inline(template: Graph, arities: Arities) -> Graph:
    """The template with the adds of its residual chains written out.

    Inputs: the template's, then the terms, chain by chain. Bitwise the same as the region.
    """
    term_types = _term_types(template)
    terms = [type_ for type_, arity in zip(term_types, arities, strict=True) for _ in range(arity)]
    writer = _Writer((*template.inputs, *terms), len(template.inputs), template.sizes)
    next_term, chain = len(template.inputs), 0
    for op, first in template.results():
        if op.name != RESIDUAL:
            writer.copy(op, first)
            continue
        numbers = range(next_term, next_term + arities[chain])
        writer.renamed[first] = writer.sum(op, writer.renamed[_head(op)], numbers)
        next_term, chain = numbers.stop, chain + 1
    return writer.graph(template.outputs)


@dataclass(frozen=True, slots=True)
class Fold:
    """One launch that adds terms to a sum. ``graph`` takes the sum so far, then the terms."""

    graph: Graph
    terms: range


@dataclass(frozen=True, slots=True)
class ChainFolds:
    """How one residual chain is summed: where it starts and what is launched."""

    head: int
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

    Bitwise the same as the region as far as ``plan.folding_is_bitwise``: the chain's order is kept, partial sums between
    kernels keep the dtype in which the region computes them, and no product crosses from one kernel to another.
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
    return ChainFolds(_head(op), tuple(folds))


def _fold_graph(op: Op, sum_type: ValueType, width: int) -> Graph:
    writer = _Writer((sum_type, *[_term_type(op)] * width), 0, 0)
    return writer.graph([writer.sum(op, 0, range(1, width + 1))], renamed=True)


def _core(template: Graph) -> Core:
    sums = [first for op, first in template.results() if op.name == RESIDUAL]
    sum_types = tuple(_sum_type(op) for op in template.ops if op.name == RESIDUAL)
    writer = _Writer((*template.inputs, *sum_types), len(template.inputs), template.sizes)
    for position, value in enumerate(sums):
        writer.renamed[value] = len(template.inputs) + position
    for op, first in template.results():
        if op.name != RESIDUAL:
            writer.copy(op, first)
    computed = [value for value in template.outputs if value not in sums]
    leaving = {value: len(computed) + position for position, value in enumerate(sums)}
    if not computed:
        return Core(None, (), tuple(leaving[value] for value in template.outputs))
    canonical = canonicalize(writer.graph(computed), chains=False)
    place = dict(zip(computed, canonical.binding.outputs, strict=True))
    return Core(canonical.graph, canonical.binding.slots, tuple({**place, **leaving}[v] for v in template.outputs))


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


def _term_types(template: Graph) -> list[TensorType]:
    return [_term_type(op) for op in template.ops if op.name == RESIDUAL]


class _Writer:
    """Writes a graph op by op, with inputs put in behind the first ``kept`` ones."""

    def __init__(self, inputs: tuple[ValueType, ...], kept: int, sizes: int):
        self.sizes = sizes
        added = len(inputs) - kept
        self.renamed = {value: value + (added if value >= kept else 0) for value in range(kept + sizes)}
        self.inputs = tuple(self._type(type_) for type_ in inputs)
        self.types: list = [*self.inputs, *[None] * sizes]
        self.ops: list[Op] = []

    def copy(self, op: Op, first: int) -> None:
        """Writes an op of the old graph."""
        number = self._append(rename_operands(op, lambda index: Ref(self.renamed[index])))
        self.renamed.update({first + position: number + position for position in range(len(op.outputs))})

    def sum(self, residual: Op, head: int, terms: range) -> int:
        """Writes out a residual chain; returns the number of the sum."""
        result = self._type(_sum_type(residual))
        total = self._converted(head, result)
        for term in terms:
            total = self._append(Op(ADD, (Ref(total), Ref(self._converted(term, result))), (result,)))
        return total

    def graph(self, outputs: Iterable[int], *, renamed: bool = False) -> Graph:
        """What was written; ``outputs`` are values of the old graph unless ``renamed``."""
        numbers = tuple(value if renamed else self.renamed[value] for value in outputs)
        return Graph(self.inputs, tuple(self.ops), numbers, self.sizes)

    def _converted(self, value: int, to: TensorType) -> int:
        if self.types[value].dtype == to.dtype:
            return value
        return self._append(Op(CONVERT, (Ref(value), Const("dtype", to.dtype)), (to,)))

    def _append(self, op: Op) -> int:
        self.ops.append(op)
        self.types.extend(op.outputs)
        return len(self.types) - len(op.outputs)

    def _type[T: ValueType](self, type_: T) -> T:
        return map_type(type_, lambda index: Ref(self.renamed[index]))
