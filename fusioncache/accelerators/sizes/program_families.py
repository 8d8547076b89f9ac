"""The families of one function's programs: found among those that Thunder derived, or in the store, and filled in.

Two programs of a form that differ in numbers alone, and for which Thunder's passes do the same, are a family. The first
two may differ in more, as where one has all of a table of which the others have a part: later ones are tried as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fusioncache.accelerators.programs.derivation import Derivation
from fusioncache.accelerators.programs.general import list_templates
from fusioncache.accelerators.programs.programs import Candidate
from fusioncache.accelerators.programs.text import Read
from fusioncache.accelerators.schedule.collectives import exchanges
from fusioncache.accelerators.sizes.families import Family, KnownProgram, list_digests
from fusioncache.accelerators.sizes.journal import Journal
from fusioncache.accelerators.sizes.kept_families import find_families, forget_family, keep_family
from fusioncache.accelerators.sizes.pass_journal import PassJournal
from fusioncache.accelerators.sizes.passes import go_through_passes
from fusioncache.accelerators.sizes.sizes import SYMBOLIC
from fusioncache.accelerators.steps.lean_steps import look_at_sizes
from fusioncache.accelerators.steps.saved_results import find_saved_twice
from fusioncache.ir import Declined, Key, Scope, is_declined
from fusioncache.process.collector import without_collector
from fusioncache.store import Store
from fusioncache.transform.rewrite import find_saved

logger = logging.getLogger("fusioncache")

MOST_LOOSE = 5
"""How many programs are tried for a family. Each try takes as long as Thunder's passes."""


class Families:
    """The families that are known of one compiled function, by the form of their programs."""

    def __init__(self) -> None:
        """Knows of none yet."""
        self._families: dict[Key, list[Family]] = {}
        self._loose: dict[Key, list[tuple[tuple[Read, ...], KnownProgram]]] = {}

    def fill(self, derivation: Derivation, form: Key) -> Candidate | None:
        """Returns the program that Thunder would derive for a call; None if that is not known from other lengths."""
        reason = None
        for family in self._list_families(derivation, form):
            try:
                check_reads(family.reads, derivation)
                with derivation.keeper.time("fill"):
                    candidate = _fill(family, derivation)
                derivation.family = family
                return candidate
            except Exception as error:  # whatever it is, Thunder can derive the program
                if is_declined(error, Scope.LENGTH):
                    reason = error.reason
                    continue
                logger.info("a program is not filled in", exc_info=error)
                reason = f"failed: {type(error).__name__}"
        if reason is not None:
            _count_repeated(derivation, reason)
        return None

    def _list_families(self, derivation: Derivation, form: Key) -> Iterator[Family]:
        """Returns the families of a form, of which the store is asked once."""
        if form not in self._families:
            self._families[form] = []  # whatever goes wrong here, it does so once
            self._families[form] += _load_families(derivation, form)
        return iter(tuple(self._families[form]))

    def forget(self, form: Key) -> None:
        """Forgets all programs of a form. The store is asked again when one comes."""
        self._families.pop(form, None)
        self._loose.pop(form, None)

    def unite(
        self, derivation: Derivation, form: Key, journal: Journal, program: KnownProgram, others: Iterable[KnownProgram]
    ) -> None:
        """Makes a family of a program and the first of others that differs from it in numbers alone.

        Finds out what Thunder's passes look at there. Whatever goes wrong, they go over each further length.

        Args:
            derivation: of one of them, with the reads of all.
            form: of all.
            journal: what is done in each.
            program: at whose sizes the passes are gone through.
            others: as above.
        """
        reads, keeper = derivation.reads, derivation.keeper
        assert reads is not None
        try:
            with keeper.time("passes"), without_collector():
                passes = go_through_passes(journal, program.sizes, derivation.call.compile_data, _look)
                family = _find_family(reads, passes, program, others)
        except Exception as error:
            is_expected = is_declined(error, Scope.LENGTH)
            logger.info("it is not known what Thunder's passes look at", exc_info=error)
            keeper.ledger.count("passes_repeated", of=str(error) if is_expected else f"failed: {type(error).__name__}")
            return
        families = self._families.setdefault(form, [])
        families[:] = [each for each in families if not each.is_same(family)]
        families.append(family)
        _keep(family, derivation, form)

    def learn(self, derivation: Derivation, form: Key, journal: Journal | None) -> None:
        """Takes one more program: to tell numbers apart that were equal so far, or for a family that is to come.

        Args:
            derivation: of the program.
            form: of the program.
            journal: what is done in it, if that was proved.
        """
        program, reads = derivation.program, derivation.reads
        if program is None or reads is None:
            return
        families = [family for family in self._families.get(form, ()) if family.reads == reads]
        for family in families:
            try:
                if family.learn(program):
                    _keep(family, derivation, form)
            except Declined as error:
                error.require(Scope.LENGTH)
                logger.info("a program is of no family any more: %s", error)
                self._families[form].remove(family)
                _forget(family, derivation, form)
        known = self._loose.setdefault(form, [])
        # What was derived from something else may differ in numbers of which sizes only happen to be the values.
        others = [each for read, each in known if read == reads]
        is_new = derivation.is_replayed and not any(family.fits(program.sizes) for family in families)
        if is_new and journal is not None and others and len(known) < MOST_LOOSE:
            self.unite(derivation, form, journal, program, others)
        if len(known) < MOST_LOOSE:
            known.append((reads, program))


def _find_family(
    reads: tuple[Read, ...], passes: PassJournal, program: KnownProgram, others: Iterable[KnownProgram]
) -> Family:
    """Returns the family of a program with the first of others that is of it.

    Raises:
        Declined: if passes may do something else for each of them.
        Declined: if one for which they do the same differs in more than numbers.
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
    """Looks at all sizes in a final trace of Thunder's at which passes of ours look.

    Raises:
        Declined: if a collective moves as many bytes as a size says: where it is put depends on that.
    """
    for symbol in trace.bound_symbols:
        proxies = (*symbol.flat_proxy_args, *symbol.flat_proxy_outs) if exchanges(symbol) else ()
        if any(type(size) in SYMBOLIC for proxy in proxies for size in getattr(proxy, "shape", ())):
            raise Declined("a collective's bytes depend on a size", Scope.LENGTH)
    look_at_sizes(trace)
    saved = {proxy.name: proxy for proxy in find_saved(trace)}
    _ = dict(find_saved_twice(trace.bound_symbols, saved))


def check_reads(reads: tuple[Read, ...], derivation: Derivation) -> None:
    """Compares what programs were derived from besides their keys with what is there now.

    Raises:
        Declined: if something is another one.
    """
    difference = derivation.keeper.find_difference(reads, derivation.definitions.describer)
    if difference is not None:
        raise Declined(f"the {difference.read.kind} {difference.read.name} has changed", Scope.LENGTH)


def _fill(family: Family, derivation: Derivation) -> Candidate:
    templates, call = derivation.keeper.templates, derivation.call
    filled, regions = family.fill(derivation.sizes, lambda found: templates.identify(found, call))
    return Candidate("", filled.text, family.reads, 0.0, None, regions, filled.compiled)


def _count_repeated(derivation: Derivation, reason: str) -> None:
    logger.info("Thunder's passes go over a program at another length: %s", reason)
    derivation.keeper.ledger.count("passes_repeated", of=reason)


def _load_families(derivation: Derivation, form: Key) -> Iterator[Family]:
    """Yields the families that are stored for a form, whose templates are what they were where they were derived."""
    keeper = derivation.keeper
    if keeper.cache.store is None:
        return
    with keeper.time("load"):
        found = find_families(keeper.cache.store, form)
    for family in found:
        known = family.known[0].text
        try:
            identities = keeper.templates.identify(known.templates(), derivation.call)
            here = [identities[name].digest for name in list_templates(known)]
        except Exception as error:  # whatever it is, Thunder can derive the program
            logger.info("a stored family is not used", exc_info=error)
            here = []
        if here == list_digests(known):
            family.is_stored = True
            yield family
        else:
            _count_repeated(derivation, "its templates are others here")


def _keep(family: Family, derivation: Derivation, form: Key) -> None:
    """Keeps a family for later processes, and has it ready for the next length in this one."""

    def keep(store: Store) -> None:
        family.is_stored = keep_family(store, form, family, derivation.call.name)

    try:
        family.prepare()
    except Exception as error:  # that is counted where a program is to be filled in
        logger.info("a family is not ready for further lengths", exc_info=error)
    family.is_stored = False
    _tell_store(derivation, keep)


def _forget(family: Family, derivation: Derivation, form: Key) -> None:
    """Has no later process find a family."""
    _tell_store(derivation, lambda store: forget_family(store, form, family))


def _tell_store(derivation: Derivation, tell: Callable[[Store], None]) -> None:
    """Changes what is stored. Whatever goes wrong there, this process goes on with what it knows."""
    store = derivation.keeper.cache.store
    if store is None:
        return
    try:
        with derivation.keeper.time("record"), without_collector():
            tell(store)
    except Exception as error:
        derivation.keeper.report_failure(error)
