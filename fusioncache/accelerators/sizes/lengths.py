"""The lengths at which one compiled function was derived, and what is known of its program at others.

The second program of a form, which has all the first one has but sizes, is interpreted while its sizes are watched. If
its operations called again at the sizes of another program give that one's first traces, to the letter, they are
called again for every further length, and Thunder's passes go on from there. All else that the program was derived
from is compared each time: its key, and what was read.

Where it is known what the passes look at, programs are a family, and those at further lengths are filled in. Families
are kept, so that a later process fills in its first program already.

For a graph of Dynamo's there are arguments of other sizes: those for which its guards hold. These guards decide nothing
but whether what is made of such arguments is of any use: whatever the sizes, Thunder derives the right program.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fusioncache.accelerators.programs.derivation import Derivation, KnownProgram
from fusioncache.accelerators.programs.key import differ_in_arguments, form_key
from fusioncache.accelerators.programs.options import find_groups
from fusioncache.accelerators.programs.programs import Candidate
from fusioncache.accelerators.programs.text import Read
from fusioncache.accelerators.sizes.families import Families, check_reads
from fusioncache.accelerators.sizes.hooks import Interpret, watch_sizes
from fusioncache.accelerators.sizes.journal import FirstTraces, Journal
from fusioncache.accelerators.sizes.passes import list_sharing, replay
from fusioncache.accelerators.sizes.values import ArgumentSizes, explain_fixed, find_sizes
from fusioncache.ir import Declined, Key, Scope, is_declined
from fusioncache.transform.dynamo_graphs import is_graph

_MOST_ALIKE = 64
"""By which power of two, at most, a size and the one in its stead are divisible alike: attention may ask for that."""

type Values = Mapping[Any, int]
"""What each symbol is."""


def has_symbols(function: Any) -> bool:
    """True if a function is a graph that Dynamo made for many sizes."""
    return is_graph(function) and any(map(_is_symbolic, chain.from_iterable(_read_sizes(function))))


def vary_sizes(graph: Any, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns arguments of other sizes for a graph. What has no symbols is the same.

    Args:
        graph: a ``torch.fx.GraphModule``.
        args: that it is called with.

    Returns:
        Arguments for which Dynamo's guards hold as well, with tensors that hold any numbers; None if nothing varies,
        or a symbol may have no other value.
    """
    import torch

    sizes = _read_sizes(graph)
    if len(sizes) != len(args):
        return None
    varying = [(size.node, arg) for each, arg in zip(sizes, args, strict=True) for size in each if _is_symbolic(size)]
    if not all(type(arg) in (int, torch.Tensor) for _, arg in varying):
        return None
    known = _read_symbols(sizes, args)
    if not known or not all(node.expr.free_symbols <= known.keys() for node, _ in varying):
        return None
    present = frozenset(chain.from_iterable(map(_list_sizes, args)))
    values = _choose_values(known, present, varying[0][0].shape_env)
    return None if values is None else tuple(_vary(*each, values) for each in zip(args, sizes, strict=True))


def _read_sizes(graph: Any) -> list[tuple[Any, ...]]:
    """Returns the sizes of each argument of a graph, symbols among them."""
    return [_list_sizes(node.meta.get("example_value")) for node in graph.graph.nodes if node.op == "placeholder"]


def _list_sizes(value: Any) -> tuple[Any, ...]:
    """Returns the sizes of an argument: of a tensor in each dimension, or an integer alone."""
    import torch

    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return (value,) if isinstance(value, int | torch.SymInt) else ()


def _is_symbolic(size: Any) -> bool:
    import torch

    return isinstance(size, torch.SymInt)


def _read_symbols(sizes: Iterable[tuple[Any, ...]], args: Sequence[Any]) -> Values:
    """Returns the value of each symbol that is a size by itself."""
    return {
        size.node.expr: actual
        for each, arg in zip(sizes, args, strict=True)
        for size, actual in zip(each, _list_sizes(arg), strict=True)
        if _is_symbolic(size) and size.node.expr.is_Symbol
    }


def _choose_values(known: Values, present: frozenset[int], environment: Any) -> Values | None:
    """Returns another value for each symbol, which none of the sizes has that are present; None if one may have none.

    A length that is as large as a width would be another program, in which both are one.
    """
    values = dict(known)
    for symbol, actual in known.items():
        taken = {*present, *values.values()}
        others = [actual + step for step in _list_steps(actual)]
        fitting = (each for each in others if each > 1 and each not in taken)
        found = next((each for each in fitting if _holds(environment, {**values, symbol: each})), None)
        if found is None:
            return None
        values[symbol] = found
    return values


def _list_steps(size: int) -> tuple[int, ...]:
    """Returns how far from a size others may lie, first those that are divisible as it is."""
    alike = min(size & -size, _MOST_ALIKE)
    return (2 * alike, -2 * alike, alike, -alike, 2, -2, 1, -1)


def _holds(environment: Any, values: Values) -> bool:
    """True if Dynamo's guards hold for these values, as far as they are about nothing else."""
    ranges = [(environment.var_to_range.get(symbol), value) for symbol, value in values.items()]
    if any(known is not None and value not in known for known, value in ranges):
        return False
    guards = [guard.expr for guard in environment.guards if guard.expr.free_symbols <= values.keys()]
    return all(_evaluate(each, values) for each in guards)


def _evaluate(expression: Any, values: Values) -> Any:
    """Returns an expression, or a condition, with these values: an integer, or whether it is true."""
    import sympy

    return expression.xreplace({symbol: sympy.Integer(value) for symbol, value in values.items()})


def _vary(arg: Any, sizes: tuple[Any, ...], values: Values) -> Any:
    """Returns an argument with other values for its symbols."""
    import torch

    if not any(map(_is_symbolic, sizes)):
        return arg
    shape = [int(_evaluate(each.node.expr, values)) if _is_symbolic(each) else each for each in sizes]
    if isinstance(arg, int):
        return shape[0]
    with torch.enable_grad():
        new = torch.empty(shape, dtype=arg.dtype, device=arg.device, requires_grad=arg.requires_grad)
        return new if arg.is_leaf else new.view_as(new)


logger = logging.getLogger("fusioncache")

MOST_WAYS = 4
"""How many ways through a program are known at once: each may have been taken because of other sizes."""

MOST_FORMS = 16
"""Of how many forms anything is known at once. With each go Thunder's first traces of some programs, and its key."""

SHARED = "the model is distributed over ranks"
"""Why each length is interpreted."""


@dataclass(frozen=True, slots=True, eq=False)
class InterpretedProgram:
    """A program that was interpreted.

    Attributes:
        reads: what it was derived from besides its key.
        sizes: of its arguments.
        traces: Thunder's first ones, as its entry has them.
        known: what was derived in the end; None if that is not kept.
    """

    reads: tuple[Read, ...]
    sizes: ArgumentSizes
    traces: FirstTraces
    known: KnownProgram | None


@dataclass(slots=True, eq=False)
class WatchedProgram:
    """What was done in a program that was watched.

    Attributes:
        instance: the program.
        journal: what was done.
        is_proved: whether the same, done at the sizes of another program, was that program.
    """

    instance: InterpretedProgram
    journal: Journal
    is_proved: bool = False


@dataclass(slots=True, eq=False)
class _KnownForm:
    """What is known of the programs that have all but sizes in common.

    Attributes:
        families: of those programs.
        instances: those that were interpreted, a few of them.
        ways: those that were watched.
    """

    families: Families
    instances: list[InterpretedProgram] = field(default_factory=list)
    ways: list[WatchedProgram] = field(default_factory=list)


class Lengths:
    """What is known of the programs of one compiled function."""

    def __init__(self) -> None:
        """Knows of none yet."""
        self._forms: OrderedDict[Key, _KnownForm] = OrderedDict()
        self._hopeless: dict[str, str] = {}
        """Why forms are interpreted, by the digests of their keys. A reason holds as long as the process."""

    def derive(self, derivation: Derivation, interpret: Interpret) -> Any:
        """Returns Thunder's first traces: called again if they are known from other lengths, else interpreted.

        Args:
            derivation: the program.
            interpret: has Thunder interpret the function.
        """
        if not derivation.keeper.replays:
            return derivation.record(lambda: _interpret_as_called(derivation, interpret))
        if is_cut(derivation.call.compile_data):
            self._count_shared(derivation)
            return derivation.record(lambda: _interpret_as_called(derivation, interpret))
        results = self._replay(derivation) or derivation.record(lambda: self._interpret(derivation, interpret))
        if list_sharing(derivation.call.compile_data):
            derivation.first = FirstTraces.of(results)
            return derivation.first.isolate().results()
        return results

    def fill(self, derivation: Derivation) -> Candidate | None:
        """Returns the program that Thunder would derive for a call; None if that is not known from other lengths."""
        keeper = derivation.keeper
        if not keeper.replays or keeper.verifies or is_cut(derivation.call.compile_data):
            return None
        form = self._find_form(derivation)
        return None if self._find_reason(derivation) else form.families.fill(derivation)

    def _find_form(self, derivation: Derivation) -> _KnownForm:
        """Returns what is known of a program's form. If there are too many forms, the one used first is forgotten."""
        key = note_form(derivation)
        form = self._forms.pop(key, None) or _KnownForm(Families(key))
        self._forms[key] = form
        while len(self._forms) > MOST_FORMS:
            self._forms.popitem(last=False)
        return form

    def _find_reason(self, derivation: Derivation) -> str | None:
        """Returns why the programs of a form are interpreted; None if they need not be."""
        return self._hopeless.get(note_form(derivation).digest)

    def _replay(self, derivation: Derivation) -> Any | None:
        form, reason = self._find_form(derivation), self._find_reason(derivation)
        for way in tuple(form.ways):
            if not way.is_proved and len(form.instances) == 1:
                continue  # it is that one
            try:
                traces = self._do_again(way, derivation)
                if not way.is_proved:
                    raise Declined("its operations were seen at one length only so far", Scope.LENGTH)
            except Exception as error:  # whatever it is, Thunder can interpret the program
                if is_declined(error, Scope.LENGTH):
                    reason = reason or error.reason
                    continue
                logger.info("a program is not done again at another length", exc_info=error)
                reason = reason or f"failed: {type(error).__name__}"
            else:
                derivation.reads = way.instance.reads
                derivation.keeper.ledger.emit("program replayed", model=derivation.call.name)
                return traces.results()
        if reason is not None:
            self._count(derivation, reason)
        return None

    @staticmethod
    def _do_again(way: WatchedProgram, derivation: Derivation) -> FirstTraces:
        check_reads(way.instance.reads, derivation)
        with derivation.keeper.time("replay"):
            return replay(way.journal, derivation.sizes, derivation.call.compile_data)

    def _interpret(self, derivation: Derivation, interpret: Interpret) -> Any:
        form, call = self._find_form(derivation), derivation.call
        is_known = any(each.sizes != derivation.sizes for each in form.instances)
        fixed = explain_fixed(call.args, call.kwargs)
        others = [key for key, other in self._forms.items() if other.instances]
        if fixed and any(differ_in_arguments(key, note_form(derivation)) for key in others):
            self._count(derivation, fixed)
        if (
            not (is_known or has_symbols(call.compile_data.fn))
            or self._find_reason(derivation)
            or len(form.ways) >= MOST_WAYS
        ):
            return _interpret_as_called(derivation, interpret)
        foreign = _find_foreign_transform(call.compile_data)
        if foreign is not None:
            self._give_up(derivation, f"{foreign} may change Thunder's first traces")
            return _interpret_as_called(derivation, interpret)
        results, derivation.journal = watch_sizes(interpret, call.compile_data, call.args, call.kwargs)
        return results

    def is_first(self, derivation: Derivation) -> bool:
        """True if a program is kept, and the only one of its form that is known."""
        same = [each.known for each in self._find_form(derivation).instances]
        return derivation.program is not None and same == [derivation.program]

    def try_again(self, derivation: Derivation) -> None:
        """Calls the operations again that are known of a program's form, and does nothing with what comes of it.

        Raises:
            Declined: if interpreting the program might do something else, such as raise.
        """
        ways = self._find_form(derivation).ways
        if not ways:
            raise Declined("its operations are not known", Scope.LENGTH)
        self._do_again(ways[0], derivation)

    def learn(self, derivation: Derivation, entry: Any) -> None:
        """Takes note of a program that was interpreted.

        Args:
            derivation: the program.
            entry: Thunder's, with its traces.
        """
        if derivation.reads is None or derivation.form is None or self._find_reason(derivation):
            return
        form = self._find_form(derivation)
        ways = (way for way in form.ways if way.is_proved and way.instance.reads == derivation.reads)
        form.families.learn(derivation, next((way.journal for way in ways), None))
        if derivation.is_replayed:
            return
        first = derivation.first or FirstTraces(
            entry.prologue_traces[0], entry.computation_traces[0], entry.epilogue_traces[0]
        )
        new = InterpretedProgram(derivation.reads, derivation.sizes, first, derivation.program)
        journal = derivation.journal
        if journal is not None and journal.refusals:
            self._give_up(derivation, journal.refusals[0])
        if self._find_reason(derivation):
            return
        is_explained = [self._prove(form, way, new, derivation) for way in tuple(form.ways)]
        if journal is not None and not any(is_explained):
            way = WatchedProgram(new, journal)
            form.ways.append(way)
            for each in form.instances:
                self._prove(form, way, each, derivation)
        if len(form.instances) <= MOST_WAYS:
            form.instances.append(new)

    def _prove(
        self, form: _KnownForm, way: WatchedProgram, instance: InterpretedProgram, derivation: Derivation
    ) -> bool:
        """True if what was done in one program is also what was done in another one."""
        own = way.instance
        if own.reads != instance.reads or own.sizes == instance.sizes:
            return False
        try:
            traces = replay(way.journal, instance.sizes, derivation.call.compile_data)
        except Exception as error:  # the programs are different, for whatever reason
            logger.info("a program was not the same at another length: %s", error)
            return False
        if traces.describe() != instance.traces.describe():
            self._give_up(derivation, "its operations at one length are not those at another, for an unknown reason")
            return False
        if not way.is_proved:
            way.is_proved = True
            if own.known is not None and instance.known is not None:
                form.families.unite(derivation, way.journal, own.known, (instance.known,))
        return True

    def _give_up(self, derivation: Derivation, reason: str) -> None:
        """Has the programs of a form interpreted from now on."""
        key = note_form(derivation)
        self._forms.pop(key, None)
        self._hopeless[key.digest] = reason
        self._count(derivation, reason)

    def _count_shared(self, derivation: Derivation) -> None:
        """Counts a program of a model that ranks share, if it is not the first one of its form."""
        reason = self._find_reason(derivation)
        if reason is not None:
            self._count(derivation, reason)
        self._hopeless[note_form(derivation).digest] = SHARED

    @staticmethod
    def _count(derivation: Derivation, reason: str) -> None:
        logger.info("a program is interpreted at another length: %s", reason)
        derivation.keeper.ledger.count("programs_interpreted", of=reason)


def is_cut(compile_data: Any) -> bool:
    """True if ranks share a model in another way than Thunder's: they may cut it otherwise at another length."""
    return bool(find_groups(compile_data)) and not list_sharing(compile_data)


def _interpret_as_called(derivation: Derivation, interpret: Interpret) -> Any:
    return interpret(derivation.call.args, dict(derivation.call.kwargs))


def note_form(derivation: Derivation) -> Key:
    """Notes what the program of a call has in common with those at other sizes, and the sizes of its arguments."""
    if derivation.form is None:
        arguments = derivation.call.args, derivation.call.kwargs
        derivation.sizes = find_sizes(*arguments)
        derivation.form = form_key(derivation.key, *arguments)
    return derivation.form


def _find_foreign_transform(compile_data: Any) -> str | None:
    """Returns the name of a transform that may change Thunder's first traces; None if none may.

    That of ``thunderfx`` makes another prologue of what it is given, with fewer checks, and changes nothing.
    """
    from fusioncache.thunder_adapter.accelerator_api import ExtractionOnlyPrologueTransform
    from fusioncache.thunder_adapter.api import Transform

    harmless = (Transform.transform_traces_pre_prologue, ExtractionOnlyPrologueTransform.transform_traces_pre_prologue)
    sharing = list_sharing(compile_data)  # what these are given is their own
    found = [type(each) for each in compile_data.transforms or () if each not in sharing]
    return next((each.__qualname__ for each in found if each.transform_traces_pre_prologue not in harmless), None)
