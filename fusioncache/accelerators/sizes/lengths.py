"""Makes the programs of a compiled function at further lengths from those at known lengths.

The second program of a form differs from the first only in sizes. It is interpreted while uses of its sizes are
recorded in a journal. If the journal, replayed at the sizes of another program, gives that program's first traces to
the letter, it is replayed for every further length, and Thunder's passes run on the result. The program's other
dependencies are compared each time: its key and its reads.

If the guards of the passes could be recorded, programs form a family, and programs at further lengths are filled in.
Families are stored, so that a later process can fill in its first program.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.programs.derivation import Derivation, KnownProgram
from fusioncache.accelerators.programs.general import list_templates
from fusioncache.accelerators.programs.key import differ_in_arguments, form_key
from fusioncache.accelerators.programs.options import find_groups
from fusioncache.accelerators.programs.programs import Candidate
from fusioncache.accelerators.programs.text import Read
from fusioncache.accelerators.schedule.collectives import exchanges
from fusioncache.accelerators.sizes.families import (
    Family,
    PassJournal,
    find_families,
    list_digests,
    remove_family,
    store_family,
)
from fusioncache.accelerators.sizes.hooks import Interpret, watch_sizes
from fusioncache.accelerators.sizes.journal import FirstTraces, Journal, replay
from fusioncache.accelerators.sizes.passes import list_distributed_transforms, record_pass_guards
from fusioncache.accelerators.sizes.sizes import SYMBOLIC
from fusioncache.accelerators.sizes.values import ArgumentSizes, explain_fixed, find_sizes
from fusioncache.accelerators.steps.lean_steps import look_at_sizes
from fusioncache.accelerators.steps.views import find_saved_twice
from fusioncache.ir import Declined, Key, Scope, is_declined
from fusioncache.process.warning import log_errors, logger
from fusioncache.transform.rewrite import find_saved

MOST_WATCHED = 4
"""The largest number of watched programs of a form: control flow may differ among sizes, and each is one path."""

MOST_LOOSE = 5
"""The largest number of programs that are tried for a family. Each try takes as long as Thunder's passes."""

MOST_FORMS = 16
"""The largest number of forms in memory. Each holds its key and Thunder's first traces of some programs."""

MOST_AT_ONCE = 16
"""For how many user-given lengths templates are filled in at each new length: the call waits for that."""

SHARED = "the model is distributed over ranks"
"""The reason why each length is interpreted if ``is_distributed_elsewhere``."""


@dataclass(frozen=True, slots=True, eq=False)
class InterpretedProgram:
    """A program that was interpreted.

    Attributes:
        reads: the outside values that it depends on besides its key.
        sizes: of its arguments.
        traces: Thunder's first traces, from its cache entry.
        known: the derived program; None if it is not stored.
    """

    reads: tuple[Read, ...]
    sizes: ArgumentSizes
    traces: FirstTraces
    known: KnownProgram | None


@dataclass(slots=True, eq=False)
class WatchedProgram:
    """A program that was interpreted while uses of its sizes were recorded.

    Attributes:
        instance: the program.
        journal: its journal.
        is_proved: whether a replay at the sizes of another program gave that program's first traces.
    """

    instance: InterpretedProgram
    journal: Journal
    is_proved: bool = False


class Form:
    """A form in this process: programs whose keys differ only in sizes.

    Args:
        key: of the form.

    Attributes:
        instances: some of the programs that were interpreted.
        watched: watched programs, each with its journal.
    """

    def __init__(self, key: Key) -> None:
        self.instances: list[InterpretedProgram] = []
        self.watched: list[WatchedProgram] = []
        self._key = key
        self._families: list[Family] | None = None
        self._loose: list[tuple[tuple[Read, ...], KnownProgram]] = []
        self._to_compile: deque[tuple[Family, int]] = deque()

    def fill(self, derivation: Derivation) -> Candidate | None:
        """Returns the filled-in program that Thunder would derive for a call; None if no family fits."""
        reason, families = None, self._list_families(derivation)
        self._compile_lengths(derivation)
        for family in families:
            try:
                check_reads(family.reads, derivation)
                with derivation.keeper.time("fill"):
                    return _fill(family, derivation)
            except Exception as error:  # Thunder can derive the program instead
                reason = _explain(error, "a program is not filled in")
        if reason is not None:
            _count_repeated(derivation, reason)
        return None

    def _list_families(self, derivation: Derivation) -> tuple[Family, ...]:
        """Returns the families of the form. Loads stored ones at the first call."""
        if self._families is None:
            self._families = []  # set first, so that an error does not repeat at each call
            derivation.keeper.start_helpers()  # the store has no program for this length, and may lack its code, too
            for family in _load_families(derivation, self._key):
                self._families.append(family)
                self._to_compile += ((family, length) for length in derivation.keeper.lengths)
        return tuple(self._families)

    def _compile_lengths(self, derivation: Derivation) -> None:
        """Queues templates for some user-given lengths for compilation in the background. Never raises."""
        for _ in range(MOST_AT_ONCE):
            if not self._to_compile:
                return
            family, length = self._to_compile.popleft()
            _compile_length(family, length, derivation)

    def unite(
        self, derivation: Derivation, journal: Journal, program: KnownProgram, others: Iterable[KnownProgram]
    ) -> None:
        """Makes a family of a program and the first of others that differs from it only in numbers.

        Runs Thunder's passes with symbols to record their guards. If this fails, they run at each further length.

        Args:
            derivation: of one of the programs, with the reads of all.
            journal: the journal of all of them.
            program: the program at whose sizes the passes run.
            others: the candidates for the second program.
        """
        reads, keeper = derivation.reads, derivation.keeper
        assert reads is not None
        try:
            with keeper.time("passes"):
                passes = record_pass_guards(journal, program.sizes, derivation.call.compile_data, _look)
                family = _find_family(reads, passes, program, others)
        except Exception as error:
            reason = _explain(error, "it is not known what Thunder's passes look at")
            keeper.ledger.count("passes_repeated", of=reason)
            return
        self._families = [*(each for each in self._families or () if not each.is_same(family)), family]
        _keep(family, derivation, self._key)
        self._to_compile += ((family, length) for length in keeper.lengths)
        self._compile_lengths(derivation)

    def learn(self, derivation: Derivation, journal: Journal | None) -> None:
        """Adds a program to its families, to distinguish numbers that were equal so far, or keeps it for a new family.

        Args:
            derivation: of the program.
            journal: a proved journal for programs with its reads, or None.
        """
        program, reads = derivation.program, derivation.reads
        if program is None or reads is None:
            return
        families = [family for family in self._families or () if family.reads == reads]
        for family in families:
            try:
                if family.learn(program):
                    _keep(family, derivation, self._key)
            except Declined as error:
                error.require(Scope.LENGTH)
                logger.info("a program is of no family any more: %s", error)
                self._families = [each for each in self._families or () if each is not family]
                with derivation.keeper.storing() as store:
                    remove_family(store, self._key, family)
        # A program with other reads may differ in numbers that equal sizes only by chance.
        others = [each for read, each in self._loose if read == reads]
        is_new = derivation.is_replayed and not any(family.fits(program.sizes) for family in families)
        if len(self._loose) < MOST_LOOSE:
            if is_new and journal is not None and others:
                self.unite(derivation, journal, program, others)
            self._loose.append((reads, program))


class Lengths:
    """The forms of one compiled function, from which programs at further lengths are made."""

    def __init__(self) -> None:
        """Starts without forms."""
        self._forms: OrderedDict[Key, Form] = OrderedDict()
        self._interpreted_reasons: dict[str, str] = {}
        """The reasons why forms are interpreted, by the digests of their keys. They hold until the process ends."""

    def derive(self, derivation: Derivation, interpret: Interpret) -> Any:
        """Returns Thunder's first traces, replayed from a journal if possible, else interpreted.

        Args:
            derivation: the program.
            interpret: makes Thunder interpret the function.
        """
        if not derivation.keeper.replays:
            return derivation.record(lambda: _interpret_as_called(derivation, interpret))
        results = self._replay(derivation) or derivation.record(lambda: self._interpret(derivation, interpret))
        if is_distributed_elsewhere(derivation.call.compile_data):
            self._interpreted_reasons[note_form(derivation).digest] = SHARED
        if list_distributed_transforms(derivation.call.compile_data):
            derivation.first = FirstTraces.of(results)
            return derivation.first.isolate().results()
        return results

    def fill(self, derivation: Derivation) -> Candidate | None:
        """Returns the filled-in program that Thunder would derive for a call; None if no family fits."""
        keeper = derivation.keeper
        if not keeper.replays or keeper.verifies:
            return None
        form = self._find_form(derivation)
        return None if self._find_reason(derivation) else form.fill(derivation)

    def _find_form(self, derivation: Derivation) -> Form:
        """Returns the form of a program, a new one if necessary. Drops the least recently used one of too many."""
        key = note_form(derivation)
        form = self._forms.pop(key, None) or Form(key)
        self._forms[key] = form
        while len(self._forms) > MOST_FORMS:
            self._forms.popitem(last=False)
        return form

    def _find_reason(self, derivation: Derivation) -> str | None:
        """Returns why the programs of a form are always interpreted; None if they are not."""
        return self._interpreted_reasons.get(note_form(derivation).digest)

    def _replay(self, derivation: Derivation) -> Any | None:
        form, reason = self._find_form(derivation), self._find_reason(derivation)
        for program in tuple(form.watched):
            if not program.is_proved and len(form.instances) == 1:
                continue  # the only known program is the watched one: nothing to compare with
            try:
                check_reads(program.instance.reads, derivation)
                with derivation.keeper.time("replay"):
                    traces = replay(program.journal, derivation.sizes, derivation.call.compile_data)
                if not program.is_proved:
                    raise Declined("its operations were seen at one length only so far", Scope.LENGTH)
            except Exception as error:  # Thunder can interpret the program instead
                failure = _explain(error, "a program is not done again at another length")
                reason = reason or failure
            else:
                derivation.reads = program.instance.reads
                derivation.keeper.ledger.emit("program replayed", model=derivation.call.name)
                return traces.results()
        if reason is not None:
            self._count(derivation, reason)
        return None

    def _interpret(self, derivation: Derivation, interpret: Interpret) -> Any:
        form, call = self._find_form(derivation), derivation.call
        is_known = any(each.sizes != derivation.sizes for each in form.instances)
        fixed = explain_fixed(call.args, call.kwargs)
        others = [key for key, other in self._forms.items() if other.instances]
        if fixed and any(differ_in_arguments(key, note_form(derivation)) for key in others):
            self._count(derivation, fixed)
        if not is_known or self._find_reason(derivation) or len(form.watched) >= MOST_WATCHED:
            return _interpret_as_called(derivation, interpret)
        foreign = _find_foreign_transform(call.compile_data)
        if foreign is not None:
            self._give_up(derivation, f"{foreign} may change Thunder's first traces")
            return _interpret_as_called(derivation, interpret)
        results, derivation.journal = watch_sizes(interpret, call.compile_data, call.args, call.kwargs)
        return results

    def learn(self, derivation: Derivation, entry: Any) -> None:
        """Records a program that was derived, for further lengths.

        Args:
            derivation: the program.
            entry: Thunder's cache entry, with its traces.
        """
        if derivation.reads is None or derivation.form is None or self._find_reason(derivation):
            return
        form = self._find_form(derivation)
        watched = (each for each in form.watched if each.is_proved and each.instance.reads == derivation.reads)
        form.learn(derivation, next((each.journal for each in watched), None))
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
        is_explained = [self._prove(form, program, new, derivation) for program in tuple(form.watched)]
        if journal is not None and not any(is_explained):
            program = WatchedProgram(new, journal)
            form.watched.append(program)
            for each in form.instances:
                self._prove(form, program, each, derivation)
        if len(form.instances) <= MOST_WATCHED:
            form.instances.append(new)

    def _prove(self, form: Form, program: WatchedProgram, instance: InterpretedProgram, derivation: Derivation) -> bool:
        """True if the journal of one program, replayed at the sizes of another, gives the other's first traces."""
        own = program.instance
        if own.reads != instance.reads or own.sizes == instance.sizes:
            return False
        try:
            traces = replay(program.journal, instance.sizes, derivation.call.compile_data)
        except Exception as error:  # any error means that the programs differ
            logger.info("a program was not the same at another length: %s", error)
            return False
        if traces.describe() != instance.traces.describe():
            self._give_up(derivation, "its operations at one length are not those at another, for an unknown reason")
            return False
        if not program.is_proved:
            program.is_proved = True
            if own.known is not None and instance.known is not None:
                form.unite(derivation, program.journal, own.known, (instance.known,))
        return True

    def _give_up(self, derivation: Derivation, reason: str) -> None:
        """Drops a form; its programs are interpreted from now on."""
        key = note_form(derivation)
        self._forms.pop(key, None)
        self._interpreted_reasons[key.digest] = reason
        self._count(derivation, reason)

    @staticmethod
    def _count(derivation: Derivation, reason: str) -> None:
        logger.info("a program is interpreted at another length: %s", reason)
        derivation.keeper.ledger.count("programs_interpreted", of=reason)


def is_distributed_elsewhere(compile_data: Any) -> bool:
    """True if a model is distributed without Thunder's DDP and FSDP: its partition may depend on the length."""
    return bool(find_groups(compile_data)) and not list_distributed_transforms(compile_data)


def _interpret_as_called(derivation: Derivation, interpret: Interpret) -> Any:
    return interpret(derivation.call.args, dict(derivation.call.kwargs))


def note_form(derivation: Derivation) -> Key:
    """Returns the form of a call's program; stores it and the argument sizes in the derivation."""
    if derivation.form is None:
        arguments = derivation.call.args, derivation.call.kwargs
        derivation.sizes = find_sizes(*arguments)
        derivation.form = form_key(derivation.key, *arguments)
    return derivation.form


def _find_foreign_transform(compile_data: Any) -> str | None:
    """Returns the name of a transform that may change Thunder's first traces, or None.

    The transform of ``thunderfx`` returns a new prologue with fewer checks, and does not change the given traces.
    """
    from fusioncache.thunder_adapter.accelerator_api import ExtractionOnlyPrologueTransform
    from fusioncache.thunder_adapter.api import Transform

    harmless = (Transform.transform_traces_pre_prologue, ExtractionOnlyPrologueTransform.transform_traces_pre_prologue)
    sharing = list_distributed_transforms(compile_data)  # these get copies of the traces
    found = [type(each) for each in compile_data.transforms or () if each not in sharing]
    return next((each.__qualname__ for each in found if each.transform_traces_pre_prologue not in harmless), None)


def _find_family(
    reads: tuple[Read, ...], passes: PassJournal, program: KnownProgram, others: Iterable[KnownProgram]
) -> Family:
    """Returns a family of a program and the first of others that fits.

    Raises:
        Declined: if none fits: at its sizes a guard fails, or it differs in more than numbers.
    """
    reason = Declined("no program of another length is known", Scope.LENGTH)
    for other in others:
        try:
            passes.check(other.sizes)
            return Family(reads, passes, (program, other))
        except Declined as declined:
            declined.require(Scope.LENGTH)
            reason = declined
    raise reason


def _look(trace: Any) -> None:
    """Makes the comparisons of sizes that fusioncache's passes make on a final trace, so that they become guards.

    Raises:
        Declined: if the bytes of a collective depend on a size: its placement depends on them.
    """
    for symbol in trace.bound_symbols:
        proxies = (*symbol.flat_proxy_args, *symbol.flat_proxy_outs) if exchanges(symbol) else ()
        if any(type(size) in SYMBOLIC for proxy in proxies for size in getattr(proxy, "shape", ())):
            raise Declined("a collective's bytes depend on a size", Scope.LENGTH)
    look_at_sizes(trace)
    saved = {proxy.name: proxy for proxy in find_saved(trace)}
    _ = dict(find_saved_twice(trace.bound_symbols, saved))


def check_reads(reads: tuple[Read, ...], derivation: Derivation) -> None:
    """Compares stored reads with the present values.

    Raises:
        Declined: if one differs.
    """
    difference = derivation.keeper.find_difference(reads, derivation.definitions.describer)
    if difference is not None:
        raise Declined(f"the {difference.read.kind} {difference.read.name} has changed", Scope.LENGTH)


def _fill(family: Family, derivation: Derivation) -> Candidate:
    keeper, call = derivation.keeper, derivation.call
    filled, regions = family.fill(derivation.sizes, lambda found: keeper.identify(found, call))
    return Candidate("", filled.text, family.reads, 0.0, None, regions, filled.compiled)


def _explain(error: Exception, consequence: str) -> str:
    """Returns the reason to count for an error, and logs its consequence."""
    is_expected = is_declined(error, Scope.LENGTH)
    logger.info("%s: %s", consequence, error, exc_info=None if is_expected else error)
    return str(error) if is_expected else f"failed: {type(error).__name__}"


def _count_repeated(derivation: Derivation, reason: str) -> None:
    logger.info("Thunder's passes go over a program at another length: %s", reason)
    derivation.keeper.ledger.count("passes_repeated", of=reason)


def _load_families(derivation: Derivation, form: Key) -> Iterator[Family]:
    """Yields the stored families of a form whose templates have the same digests in this process."""
    keeper = derivation.keeper
    with keeper.time("load"):
        found = find_families(keeper.store, form)
    for family in found:
        known = family.known[0].text
        here: list[str] = []
        with log_errors("a stored family is not used"):  # Thunder can derive the program instead
            identities = keeper.identify(known.templates(), derivation.call)
            here = [identities[name].digest for name in list_templates(known)]
        if here == list_digests(known):
            yield family
        else:
            _count_repeated(derivation, "its templates are others here")


def _keep(family: Family, derivation: Derivation, form: Key) -> None:
    """Stores a family for later processes, and compiles its code for the next length in this one."""
    with log_errors("a family is not ready for further lengths"):  # counted when a program is to be filled in
        family.prepare()
    with derivation.keeper.storing() as store:
        store_family(store, form, family, derivation.call.name)


def _compile_length(family: Family, length: int, derivation: Derivation) -> None:
    """Queues the templates of a family at one length for compilation in the background. Never raises."""
    keeper, call = derivation.keeper, derivation.call
    try:
        with keeper.time("fill"):
            templates = family.fill_templates(length, lambda found: keeper.identify(found, call))
            keeper.compile_later(templates.values(), call)
    except Exception as error:  # a call of this length compiles them itself
        is_expected = is_declined(error, Scope.LENGTH)
        logger.info("nothing is compiled for length %s", length, exc_info=error)
        reason = f"length {length}: {error if is_expected else type(error).__name__}"
        keeper.ledger.count("lengths_refused", of=reason)
