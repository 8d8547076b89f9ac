"""Thunder's passes, gone through once with sizes that are symbols, so that it is known what they look at.

A pass computes with sizes and compares them: whether two shapes are equal, whether one broadcasts. Where all
comparisons come out the same at other sizes, and whoever was asked for a decision decides the same, the passes do the
same, and each number in the final traces is one of the expressions that are in these traces.

What is gone through here is thrown away but for that: no program is made of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from itertools import combinations
from types import ModuleType
from typing import Any

from fusioncache.tracing.lengths.expressions import COMPARISONS, Expression, Number, evaluate
from fusioncache.tracing.lengths.first_traces import Place
from fusioncache.tracing.lengths.journal import Journal, Look
from fusioncache.tracing.lengths.replay import Different, find_stats, perform
from fusioncache.tracing.lengths.sizes import SymbolicSize, express, plain
from fusioncache.tracing.lengths.structure import exchange
from fusioncache.tracing.replacement import Replacement

type Shapes = Mapping[Place, tuple[int, ...]]
type Sizes = tuple[Expression, ...]

_WITNESS: ContextVar[_Witness | None] = ContextVar("fusioncache_passes", default=None)
"""Who is told of the looks of the passes that are gone through here."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that was decided by what is not interpreted, as by the library that has a kernel or has none.

    Attributes:
        function: decides.
        args: what it was asked about, with symbols for sizes.
        answer: what it decided.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    answer: Any


@dataclass(frozen=True, slots=True)
class PassJournal:
    """What Thunder's passes did with the sizes of one program.

    Attributes:
        sizes: of each argument, by its place: numbers of which this is about, and those that may be no others.
        looks: comparisons.
        unequal: arguments of operations that would be the same operation if they were equal.
        decisions: of others.
        expressions: each that is in a final trace.
    """

    sizes: Mapping[Place, tuple[int | Number, ...]]
    looks: tuple[Look, ...]
    unequal: tuple[tuple[Sizes, Sizes], ...]
    decisions: tuple[Decision, ...]
    expressions: frozenset[Expression]

    def check(self, shapes: Shapes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these shapes.

        Raises:
            Different: if the passes might do something else there.
        """
        numbers = self.read(shapes)
        for look in self.looks:
            left, right = (evaluate(each, numbers) for each in (look.left, look.right))
            if COMPARISONS[look.symbol](left, right) is not look.outcome:
                raise Different(f"a pass of Thunder's may do something else: {look}")
        for one, other in self.unequal:
            if all(evaluate(left, numbers) == evaluate(right, numbers) for left, right in zip(one, other, strict=True)):
                raise Different("two operations are the same at these sizes")
        for decision in self.decisions:
            if _ask(decision, numbers) != decision.answer:
                raise Different(f"{decision.function.__name__} decides otherwise")
        return numbers

    def read(self, shapes: Shapes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these shapes.

        Raises:
            Different: if a size is another one that is no number.
        """
        if shapes.keys() != self.sizes.keys():
            raise Different("there are other arguments")
        numbers: dict[int, int] = {}
        for place, sizes in self.sizes.items():
            for size, value in zip(sizes, shapes[place], strict=True):
                if isinstance(size, Number) and value > 1:
                    numbers[size.position] = value
                elif size != value:
                    raise Different(f"a size is {value}")
        return numbers


def go_through_passes(journal: Journal, names: Mapping[Place, str], shapes: Shapes, compiled: Any) -> PassJournal:
    """Has Thunder's passes go over a program once more, and notes what they do with sizes.

    Args:
        journal: how the program was made.
        names: of its inputs in the first traces, by their places.
        shapes: of the arguments.
        compiled: what Thunder knows of the function.

    Raises:
        Different: if the operations cannot be called again.
        Exception: if a pass cannot do with symbols.
    """
    from thunder.core.compile_data import compile_data_and_stats
    from thunder.core.langctxs import langctx

    sizes = dict(_number(shapes))
    witness = _Witness()
    token = _WITNESS.set(witness)
    try:
        with _know_symbols(), compile_data_and_stats(compiled, find_stats(compiled)), langctx(compiled.langctx):
            symbols = {names[place]: witness.make_symbols(each, shapes[place]) for place, each in sizes.items()}
            traces = _apply(perform(journal, symbols, compiled), compiled)
        found = _Findings(symbol for trace in traces for symbol in trace.bound_symbols)
    finally:
        _WITNESS.reset(token)
        witness.is_done = True
    expressions = found.expressions | {size for each in sizes.values() for size in each}
    decisions = tuple(witness.decisions.values())
    return PassJournal(sizes, tuple(witness.looks), tuple(found.unequal()), decisions, frozenset(expressions))


def _number(shapes: Shapes) -> Iterator[tuple[Place, tuple[int | Number, ...]]]:
    """Yields the sizes of each argument: a number for each that may be another one."""
    count = 0
    for place, shape in shapes.items():
        sizes: list[int | Number] = []
        for dimension, size in enumerate(shape):
            count += 1
            name = f"args[{place}]" if isinstance(place, int) else place
            sizes.append(Number(count, f"{name}.shape[{dimension}]") if size > 1 else size)
        yield place, tuple(sizes)


class _Witness:
    """Notes what passes look at."""

    def __init__(self) -> None:
        self.looks: dict[Look, None] = {}
        self.decisions: dict[tuple[Any, ...], Decision] = {}
        self.is_done = False
        self._seen: set[tuple[Any, ...]] = set()

    def make_symbols(self, sizes: tuple[int | Number, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
        pairs = zip(sizes, shape, strict=True)
        return tuple(SymbolicSize(value, size, self) if isinstance(size, Number) else size for size, value in pairs)

    def see_value(self, size: Any, reason: str) -> None:
        self._look("==", size.expression, plain(size), True, reason)

    def see_comparison(self, symbol: str, left: Expression, right: Expression, outcome: bool) -> None:
        self._look(symbol, left, right, outcome, "compares")

    def refuse(self, reason: str) -> None:
        raise Different(reason)

    def _look(self, symbol: str, left: Expression, right: Expression, outcome: bool, reason: str) -> None:
        what = symbol, left, right, outcome
        if self.is_done or what in self._seen or left == right:
            return
        self._seen.add(what)
        self.looks[Look(*what, reason, _find_place())] = None

    def decide(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Has something decided for plain sizes, and notes what was decided."""
        described = function.__name__, *map(_describe, args)
        if described not in self.decisions:
            self.decisions[described] = Decision(function, args, function(*_fill(args, None)))
        return self.decisions[described].answer


def _find_place() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(__package__):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _describe(arg: Any) -> Any:
    from thunder.core.proxies import TensorProxy

    if isinstance(arg, TensorProxy):
        shape = tuple(each.expression if isinstance(each, SymbolicSize) else each for each in arg.shape)
        return shape, str(arg.device), str(arg.dtype), arg.requires_grad
    return repr(arg)


def _fill(value: Any, numbers: Mapping[int, int] | None) -> Any:
    """Returns a structure with plain sizes: those of these numbers, or those that symbols have."""
    from thunder.core.proxies import TensorProxy
    from thunder.core.trace import TraceCtx, tracectx

    def fill_leaf(leaf: Any) -> Any:
        if isinstance(leaf, SymbolicSize):
            return plain(leaf) if numbers is None else evaluate(leaf.expression, numbers)
        if isinstance(leaf, TensorProxy):
            return leaf.replace(shape=tuple(map(fill_leaf, leaf.shape)))
        return leaf

    with tracectx(TraceCtx()):
        return exchange(value, fill_leaf)


def _ask(decision: Decision, numbers: Mapping[int, int]) -> Any:
    return decision.function(*_fill(decision.args, numbers))


def _apply(trace: Any, compiled: Any) -> list[Any]:
    """Applies Thunder's passes as ``thunder.jit`` does; returns the final forward trace, and the backward one."""
    from thunder.common import transform_for_execution
    from thunder.core import transform_common
    from thunder.core.proxies import TensorProxy
    from thunder.distributed.utils import maybe_sort_waits
    from thunder.executors.passes import _transform_for_operator_executor_execution
    from thunder.transforms.autodiff import grad_transform_on_trace, split_into_forward_and_backward

    executors = compiled.executors_list
    trace = transform_common.wrap_return_value_together_with_arguments(trace)
    trace = transform_common.remove_context_manager_prims_from_trace(trace)
    trace = transform_common.dce(trace)
    is_differentiable = not compiled.disable_torch_autograd_support
    has_gradients = is_differentiable and any(isinstance(a, TensorProxy) and a.requires_grad for a in trace.args)
    trace = grad_transform_on_trace(trace) if has_gradients else trace
    if maybe_sort_waits(_transform_for_operator_executor_execution(trace, executors))[0]:
        raise Different("it has collectives")
    trace = transform_for_execution(trace, executors_list=executors, use_del_last_used=False)[-1]
    return list(split_into_forward_and_backward(trace)) if has_gradients else [trace]


class _Findings:
    """What is in final traces.

    Attributes:
        expressions: of all sizes.
    """

    def __init__(self, symbols: Iterator[Any]) -> None:
        self.expressions: set[Expression] = set()
        self._alike: dict[Any, dict[Sizes, tuple[int, ...]]] = {}
        for symbol in symbols:
            self._see(symbol)

    def _see(self, symbol: Any) -> None:
        blank, sizes, values = [symbol.sym.id or symbol.sym.name], [], []
        for leaf in (*symbol.flat_args, *symbol.flat_outs):
            self._find(leaf)
        for leaf in symbol.flat_args:
            if isinstance(leaf, SymbolicSize) or type(leaf) is int:
                sizes.append(express(leaf))
                values.append(plain(leaf))
                blank.append(int)
            else:
                blank.append(getattr(leaf, "name", None) or repr(leaf))
        if sizes:
            self._alike.setdefault(tuple(blank), {})[tuple(sizes)] = tuple(values)
        for each in symbol.subsymbols:
            self._see(each)

    def _find(self, leaf: Any) -> None:
        for size in getattr(leaf, "shape", (leaf,)) or ():
            if isinstance(size, SymbolicSize):
                self.expressions.add(size.expression)

    def unequal(self) -> Iterator[tuple[Sizes, Sizes]]:
        """Yields arguments of two operations that differ in sizes alone, and might not at other sizes."""
        for known in self._alike.values():
            for one, other in combinations(known, 2):
                parts = [(left, right) for left, right in zip(one, other, strict=True) if left != right]
                is_certain = any(isinstance(left, int) and isinstance(right, int) for left, right in parts)
                if known[one] != known[other] and not is_certain:
                    yield tuple(left for left, _ in parts), tuple(right for _, right in parts)


_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def _know_symbols() -> Iterator[None]:
    """Has functions that passes call know of symbols, as long as its body runs. All others are served as ever."""
    from thunder import clang
    from thunder.core import dtypes, pytree
    from thunder.core.proxies import TensorProxy
    from thunder.executors import utils

    replacements = (
        Replacement(pytree, "tree_map", None, _keep_symbols, everywhere=True),
        Replacement(utils, "_fused_sdp_choice", None, _note_decision, everywhere=True),
        Replacement(TensorProxy, "__init__", None, _count_symbols),
        Replacement(clang, "math", None, _ask_no_symbol),
        Replacement(dtypes, "_numberclass_to_numbertype", None, _know_their_type, everywhere=True),
    )
    with _ONE_AT_A_TIME:
        swapped = [(each, old := each.get(), each.make(old)) for each in replacements]
        for each, old, new in swapped:
            each.swap(old, new)
        try:
            yield
        finally:
            for each, old, new in swapped:
                each.swap(new, old)


def _keep_symbols(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has what is converted to integers stay a symbol, as ``int`` may return nothing but integers."""

    @wraps(original)
    def tree_map(func: Callable[..., Any], tree: Any, /, *rests: Any, **options: Any) -> Any:
        is_converting = func is int and _WITNESS.get() is not None
        return original(_to_integer if is_converting else func, tree, *rests, **options)

    return tree_map


def _to_integer(value: Any) -> Any:
    return value if isinstance(value, SymbolicSize) else int(value)


def _note_decision(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a decision that depends on sizes noted, so that it is asked for again at others."""

    @wraps(original)
    def decide(*args: Any, **kwargs: Any) -> Any:
        witness = _WITNESS.get()
        if witness is None or kwargs:
            return original(*args, **kwargs)
        return witness.decide(original, args)

    return decide


def _count_symbols(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has the number of elements of a tensor be a symbol, which Thunder makes a kind of integer of."""

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if isinstance(self._numel, SymbolicSize):
            self.numel = self._numel

    return __init__


def _know_their_type(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a symbol be an integer where Thunder asks of which class a number is."""

    @wraps(original)
    def find_type(cls: type) -> Any:
        return original(int if cls is SymbolicSize else cls)

    return find_type


def _ask_no_symbol(original: ModuleType) -> ModuleType:
    """Has no symbol asked whether it is finite."""
    copy = ModuleType(original.__name__, original.__doc__)
    vars(copy).update(vars(original))
    vars(copy)["isfinite"] = lambda value: isinstance(value, SymbolicSize) or original.isfinite(value)
    return copy
