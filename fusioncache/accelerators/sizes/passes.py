"""Runs Thunder's passes with symbols for sizes, to record the guards and expressions of a family.

A pass computes with sizes and compares them: whether two shapes are equal, whether one broadcasts. If all comparisons
and decisions have the same results at other sizes, the passes do the same. Each number in the final traces is then the
value of an expression in the symbolic traces. These traces are discarded: no program is made of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from fusioncache.accelerators.sizes.families import Decision, Expressions, PassJournal, decide, describe_argument
from fusioncache.accelerators.sizes.hooks import support_symbols
from fusioncache.accelerators.sizes.journal import Journal, SizeGuard, find_stats, replay_computation
from fusioncache.accelerators.sizes.repeats import shorten
from fusioncache.accelerators.sizes.sizes import (
    SYMBOLIC,
    Expression,
    Float,
    GuardListener,
    Number,
    SymbolicSize,
    evaluate,
    express,
    plain,
)
from fusioncache.accelerators.sizes.values import ArgumentSizes, Place, name_argument
from fusioncache.ir.errors import Declined, Scope
from fusioncache.process.warning import log_errors
from fusioncache.thunder_adapter.accelerator_api import transform_common
from fusioncache.thunder_adapter.api import TensorProxy, compile_data_and_stats, langctx

_FEW, _MORE = 3, 4
"""The numbers of equal blocks in shortened programs: the first, the last, and one or two blocks between them."""


def record_pass_guards(
    journal: Journal,
    sizes: ArgumentSizes,
    compiled: Any,
    then: Callable[[Any], None],
) -> PassJournal:
    """Returns the guards and expressions of Thunder's passes, which run on a program once more with symbols.

    If the program repeats a block, the passes run on two programs with few of the blocks. If they fail, or if guards or
    expressions differ, and so depend on the number of blocks, the passes run on the whole program.

    Args:
        journal: of the program.
        sizes: of the arguments.
        compiled: Thunder's ``CompileData`` of the function.
        then: called with each final trace; it makes all comparisons of sizes that fusioncache's later passes make.

    Raises:
        Declined: if the journal cannot be replayed, or something refuses other sizes.
        Exception: if a pass does not support symbols.
    """
    numbered = dict(_number(sizes))
    listener = PassListener()
    with support_symbols(listener), compile_data_and_stats(compiled, find_stats(compiled)), langctx(compiled.langctx):
        symbols = {place: listener.make_symbols(each, sizes[place]) for place, each in numbered.items()}
        computation = replay_computation(journal, symbols, compiled)
        listener.mark()

        def record(trace: Any) -> PassJournal:
            listener.reset()
            traces = apply_passes(_distribute(journal, trace, symbols, compiled), compiled)
            for each in traces:
                then(each)
            return _describe(TraceSizes(symbol for each in traces for symbol in each.bound_symbols), numbered, listener)

        shortened = shorten(computation, _FEW)
        if shortened is not computation:
            with log_errors("passes run on all blocks of a program"):
                few, more = map(record, (shortened, shorten(computation, _MORE)))
                if few == more:
                    return more
        return record(computation)


def _describe(
    found: TraceSizes, numbered: Mapping[Place, tuple[int | Number, ...]], listener: PassListener
) -> PassJournal:
    """Returns the guards and expressions."""
    expressions = found.expressions | {size for each in numbered.values() for size in each}
    guards, decisions = tuple(listener.guards.values()), tuple(decision for decision, _ in listener.decisions.values())
    unequal = tuple(dict.fromkeys(found.unequal()))
    written, in_comments = (tuple(sorted(each, key=repr)) for each in (expressions, found.in_comments - expressions))
    return PassJournal(tuple(numbered.items()), guards, unequal, decisions, written, in_comments)


def _number(arguments: ArgumentSizes) -> Iterator[tuple[Place, tuple[int | Number, ...]]]:
    """Yields the sizes of each argument, with a variable for each size above 1."""
    count = 0
    for place, values in arguments.items():
        sizes: list[int | Number] = []
        for dimension, size in enumerate(values):
            count += 1
            sizes.append(Number(count, f"{name_argument(place)}[{dimension}]") if size > 1 else size)
        yield place, tuple(sizes)


class PassListener(GuardListener):
    """Records the comparisons and decisions of passes."""

    def __init__(self) -> None:
        self.guards: dict[tuple[Any, ...], SizeGuard] = {}
        self.decisions: dict[str, tuple[Decision, Any]] = {}
        self._numbers: dict[int, int] = {}
        self.mark()

    def mark(self) -> None:
        """Makes ``reset`` return to what is recorded now."""
        self._marked = dict(self.guards), dict(self.decisions)

    def reset(self) -> None:
        """Forgets what was recorded since ``mark``."""
        self.guards, self.decisions = map(dict, self._marked)

    def make_symbols(self, sizes: tuple[int | Number, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Returns a shape with a symbol for each variable, which reports guards to this listener."""
        pairs = tuple(zip(sizes, shape, strict=True))
        self._numbers |= {size.position: value for size, value in pairs if isinstance(size, Number)}
        return tuple(SymbolicSize(value, size, self) if isinstance(size, Number) else size for size, value in pairs)

    def refuse(self, reason: str) -> None:
        """Aborts the passes: other sizes are not supported.

        Raises:
            Declined: always.
        """
        raise Declined(reason, Scope.LENGTH)

    def guard(self, symbol: str, left: Expression, right: Expression, outcome: bool, reason: str) -> None:
        """Records that something depends on the outcome of a comparison, without duplicates."""
        what = symbol, left, right, outcome
        if what not in self.guards and left != right:
            self.guards[what] = SizeGuard(*what, reason, _find_place())

    def decide(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Returns the result of a deciding function for plain sizes, and records it as a guard.

        Raises:
            Declined: if an argument cannot be stored as data.
        """
        name = function.__name__
        arguments = tuple(map(describe_argument, args))
        # Compared as text, which distinguishes 1, 1.0 and True.
        query = f"{name}{arguments}"
        if query not in self.decisions:
            answer = decide(function, arguments, self._numbers)
            self.decisions[query] = Decision(name, arguments, str(answer)), answer
        return self.decisions[query][1]


def _find_place() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(__package__):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _distribute(journal: Journal, computation: Any, symbols: Mapping[Place, tuple[Any, ...]], compiled: Any) -> Any:
    """Returns the computation trace after Thunder's preprocessing and distributed transforms (DDP, FSDP)."""
    from fusioncache.thunder_adapter.accelerator_api import insert_alias_updates

    computation = transform_common.wrap_return_value_together_with_arguments(computation)
    computation = transform_common.remove_context_manager_prims_from_trace(computation)
    if not compiled.compile_options.get("skip_inplace_alias_updates", False):
        computation = insert_alias_updates(computation, [])  # as for arguments that are no views of each other
    sharing = list_distributed_transforms(compiled)
    if not sharing:
        return computation
    assert journal.traces is not None
    traces = journal.traces.with_computation(computation, symbols).isolate()
    shared = traces.prologue, traces.computation, traces.epilogue
    for transform in sharing:
        shared = transform.transform_traces_pre_prologue(*shared, executors_list=compiled.executors_list)
    return shared[1]


def list_distributed_transforms(compiled: Any) -> list[Any]:
    """Returns Thunder's DDP and FSDP transforms of a function. Their result depends on no argument's size."""
    from fusioncache.thunder_adapter.accelerator_api import DDPTransform, FSDPTransform

    return [each for each in compiled.transforms or () if type(each) in (DDPTransform, FSDPTransform)]


def apply_passes(trace: Any, compiled: Any) -> list[Any]:
    """Returns the final traces, forward and backward if any, after Thunder's passes in the order of ``thunder.jit``."""
    from fusioncache.thunder_adapter.accelerator_api import (
        _transform_for_operator_executor_execution,
        grad_transform_on_trace,
        maybe_sort_waits,
        split_into_forward_and_backward,
        transform_for_execution,
    )

    executors = compiled.executors_list
    trace = transform_common.dce(trace)
    is_differentiable = not compiled.disable_torch_autograd_support
    has_gradients = is_differentiable and any(isinstance(a, TensorProxy) and a.requires_grad for a in trace.args)
    trace = grad_transform_on_trace(trace) if has_gradients else trace
    has_waits, sorted_trace = maybe_sort_waits(_transform_for_operator_executor_execution(trace, executors))
    trace = sorted_trace if has_waits else trace
    trace = transform_for_execution(trace, executors_list=executors, use_del_last_used=False)[-1]
    if not has_gradients:
        return [trace]
    # Under no_grad parameters may require gradients as well, but there is no backward trace.
    return [each for each in split_into_forward_and_backward(trace) if each is not None]


_OPEN = frozenset({"torch", "python"})
"""Executors of operations whose arguments fusioncache's passes may change."""
_MOVING = ("unpack", "python_return", "python_del", "clear_")
"""Name prefixes of symbols that only pass tensors on."""


def _runs_whole(symbol: Any) -> bool:
    """True if a program calls a symbol unchanged, so that its tensors' sizes appear in comments only."""
    executor = symbol.sym.executor
    is_whole = executor is not None and not symbol.sym.is_fusion and executor.name not in _OPEN
    return is_whole or symbol.sym.name.startswith(_MOVING)


class TraceSizes:
    """The sizes in final traces.

    Attributes:
        expressions: of all sizes that may appear in a program outside comments.
        in_comments: of sizes that appear in comments.
    """

    def __init__(self, symbols: Iterator[Any]) -> None:
        self.expressions: set[Expression] = set()
        self.in_comments: set[Expression] = set()
        self._alike: dict[Any, dict[Expressions, tuple[int, ...]]] = {}
        for symbol in symbols:
            self._see(symbol)

    def _see(self, symbol: Any) -> None:
        blank, sizes, values = [symbol.sym.id or symbol.sym.name], [], []
        is_whole = _runs_whole(symbol)
        for leaf in (*symbol.flat_args, *symbol.flat_outs):
            self._find(leaf, is_whole=is_whole)
        for leaf in symbol.flat_args:
            if type(leaf) in (*SYMBOLIC, int, float):
                sizes.append(express(leaf))
                values.append(plain(leaf))
                blank.append(Number)
            else:
                blank.append(getattr(leaf, "name", None) or repr(leaf))
        if sizes:
            self._alike.setdefault(tuple(blank), {})[tuple(sizes)] = tuple(values)
        for each in symbol.subsymbols:
            self._see(each)

    def _find(self, leaf: Any, *, is_whole: bool) -> None:
        shape = getattr(leaf, "shape", None)
        found = self.in_comments if is_whole and shape is not None else self.expressions
        found.update(size.expression for size in shape or (leaf,) if type(size) in SYMBOLIC)

    def unequal(self) -> Iterator[tuple[Expressions, Expressions]]:
        """Yields the numbers of two operations that differ only in numbers, and might be equal at other sizes."""
        for known in self._alike.values():
            for one, other in combinations(known, 2):
                parts = [(left, right) for left, right in zip(one, other, strict=True) if left != right]
                is_certain = any(_never_equal(left, right) for left, right in parts)
                if known[one] != known[other] and not is_certain:
                    yield tuple(left for left, _ in parts), tuple(right for _, right in parts)


def _never_equal(one: Expression, other: Expression) -> bool:
    """True if two expressions are constants that Thunder distinguishes. It treats 1 and 1.0 as equal."""
    are_constant = isinstance(one, int | Float) and isinstance(other, int | Float)
    return are_constant and evaluate(one, {}) != evaluate(other, {})
