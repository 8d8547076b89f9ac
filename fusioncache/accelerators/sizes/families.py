"""One program at several lengths, as one with numbers to be filled in: nothing is derived for a further length.

Thunder's passes went over the program at two lengths or more, and once more with symbols for sizes, which tells what
they look at. Where all of that comes out the same at another length, Thunder would make the known program with other
numbers. The first two programs of a form may differ in more, as where one has all of a table of which the others have a
part: later ones are tried as well.

A family is stored under the form of its programs, so that a process goes on from it that has seen no length yet. What
the programs read, and what the passes looked at, is compared as for any program. The artifacts are ``reads``, for each
program that is known ``program-0``, ``program-1`` and so on, ``regions-0`` where that is known, and::

    family = the outline of ``journal.py``: what passes looked at, and the sizes of each program

The traces are the bytes of programs that are stored themselves, mostly, so that they take no room of their own. What is
filled in from a family that is stored is not stored itself: a later process fills it in as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fusioncache.accelerators.programs.derivation import Derivation, KnownProgram
from fusioncache.accelerators.programs.general import (
    FilledProgram,
    GeneralProgram,
    Identify,
    list_templates,
)
from fusioncache.accelerators.programs.programs import Candidate
from fusioncache.accelerators.programs.text import ProgramText, Read, decode, decode_reads, encode, encode_reads
from fusioncache.accelerators.schedule.collectives import exchanges
from fusioncache.accelerators.sizes.journal import Journal, PassJournal, decode_outline, encode_outline
from fusioncache.accelerators.sizes.passes import go_through_passes
from fusioncache.accelerators.sizes.sizes import SYMBOLIC
from fusioncache.accelerators.sizes.values import ArgumentSizes
from fusioncache.accelerators.steps.lean_steps import look_at_sizes
from fusioncache.accelerators.steps.views import find_saved_twice
from fusioncache.ir import Key, is_declined
from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.kept_regions import KeptRegions, decode_regions
from fusioncache.process.collector import without_collector
from fusioncache.store import Store
from fusioncache.store.entry import FAMILY_SLOTS
from fusioncache.transform.rewrite import find_saved

MOST_KNOWN = 6
"""Of how many programs a family is made. Each tells apart what was equal in all before."""


class Family:
    """What programs of one form have in common.

    Args:
        reads: what they were derived from besides.
        passes: what Thunder's passes look at.
        known: programs that Thunder derived, two or more.

    Attributes:
        reads: as above.
        passes: as above.
        known: the programs that it is made of.
        is_stored: whether a later process finds it.

    Raises:
        Declined: if they differ in more than numbers, or something else may depend on sizes.
    """

    def __init__(self, reads: tuple[Read, ...], passes: PassJournal, known: Sequence[KnownProgram]):
        first, *others = (each.list_placements() for each in known)
        if any(other != first for other in others):
            raise Declined("its collectives are in other places", Scope.LENGTH)
        self.reads = reads
        self.passes = passes
        self.is_stored = False
        self.known = tuple(known)
        self._general = self._generalize(self.known)
        self._digests = list_digests(known[0].text)
        kept = known[0].regions
        self._regions = None if kept is None else decode_regions(kept, None, 0)

    def _generalize(self, known: Sequence[KnownProgram]) -> GeneralProgram:
        programs = [(each.text, self.passes.read(each.sizes)) for each in known]
        return GeneralProgram(programs, self.passes.expressions, self.passes.shapes)

    def is_same(self, other: Family) -> bool:
        """True if another family is of the same programs, whichever of these it knows."""
        return self.reads == other.reads and _forget_places(self.passes) == _forget_places(other.passes)

    def fits(self, sizes: ArgumentSizes) -> bool:
        """True if passes would do the same for arguments of these sizes."""
        try:
            self.passes.check(sizes)
        except Declined as declined:
            declined.require(Scope.LENGTH)
            return False
        return True

    def learn(self, program: KnownProgram) -> bool:
        """Takes one more program, which tells more of what each number is; returns whether it did.

        One for which passes might have done something else is no program of this family.

        Raises:
            Declined: if it differs in more than numbers.
        """
        if len(self.known) >= MOST_KNOWN or any(each.sizes == program.sizes for each in self.known):
            return False
        try:
            numbers = self.passes.check(program.sizes)
        except Declined as declined:
            declined.require(Scope.LENGTH)
            return False
        if not self.passes.can_compute_all(numbers):
            return False
        known = (*self.known, program)
        self._general, self.known = self._generalize(known), known
        return True

    def prepare(self) -> None:
        """Makes what a program is filled into, which takes longer than to fill one in: Python compiles it.

        Raises:
            Declined: if a number is where none can be filled in.
        """
        self._general.prepare()

    def fill(self, sizes: ArgumentSizes, identify: Identify) -> tuple[FilledProgram, KeptRegions | None]:
        """Returns the program for arguments of these sizes, and what is on record of its regions, if that is known.

        Raises:
            Declined: if Thunder's passes might do something else.
            Declined: if a number is not known.
        """
        filled = self._general.fill(self.passes.check(sizes), identify)
        return filled, self._fill_regions(filled.digests)

    def _fill_regions(self, digests: Sequence[str]) -> KeptRegions | None:
        """Returns what is on record of regions, with the digests of other templates."""
        kept = self._regions
        if kept is None:
            return None
        others: Mapping[str | None, str] = dict(zip(self._digests, digests, strict=True))
        regions = (replace(region, digest=others.get(region.digest, region.digest)) for region in kept.regions)
        return replace(kept, regions=tuple(regions))


def _forget_places(passes: PassJournal) -> PassJournal:
    """Returns what passes looked at without the files in which they are here."""
    return replace(passes, looks=tuple(replace(look, place="") for look in passes.looks))


def list_digests(program: ProgramText) -> list[str]:
    """Returns the digests of a program's templates, in the order in which they are called first."""
    templates = program.templates()
    return [templates[name].digest for name in list_templates(program)]


_FAMILY, _READS, _PROGRAM, _REGIONS = "family", "reads", "program-", "regions-"
_PATIENCE = 10.0
"""Seconds for which to wait for other processes that keep a family of the same form, which takes them milliseconds."""


def find_families(store: Store, form: Key) -> tuple[Family, ...]:
    """Returns the families that are stored for a form. What cannot be read is removed. Never raises.

    A remote is asked for what is not here, up to the first slot that is free there, too.
    """
    return tuple(family for _, family in _list_families(store, form, asks_remote=True))


def keep_family(store: Store, form: Key, family: Family, name: str) -> bool:
    """Keeps a family, in the stead of what is stored of it. If all slots are taken, the oldest family goes.

    Args:
        store: where it goes.
        form: of its programs.
        family: learns what others have stored of it.
        name: of the model, for people.

    Returns:
        Whether it is stored.

    Raises:
        ValueError: if something in it cannot be written.
    """
    with store.take_turn(form, FAMILY_SLOTS[0], _PATIENCE):
        found = dict(_list_families(store, form))
        same = [slot for slot, other in found.items() if other.is_same(family)]
        for slot in same:
            _learn_all(family, found[slot].known)
        free = [slot for slot in FAMILY_SLOTS if slot not in found]
        slot = next(iter((*same, *free)), None) or store.find_oldest(form, found)
        artifacts = encode_family(family)
        store.remove(form, slot)
        return store.save(form, slot, artifacts, name=name)


def forget_family(store: Store, form: Key, family: Family) -> None:
    """Removes what is stored of a family."""
    with store.take_turn(form, FAMILY_SLOTS[0], _PATIENCE):
        for slot, other in _list_families(store, form):
            if other.is_same(family):
                store.remove(form, slot)


def encode_family(family: Family) -> Mapping[str, bytes]:
    """Returns a family as artifacts. Equal ones have equal bytes.

    Raises:
        ValueError: if something in it cannot be written.
    """
    outline = encode_outline(family.passes, [each.sizes for each in family.known])
    artifacts = {_FAMILY: outline, _READS: encode_reads(family.reads)}
    for number, program in enumerate(family.known):
        artifacts[f"{_PROGRAM}{number}"] = encode(program.text)
        if program.regions is not None:
            artifacts[f"{_REGIONS}{number}"] = program.regions
    return artifacts


def decode_family(artifacts: Mapping[str, bytes]) -> Family:
    """Returns the family that was encoded.

    Raises:
        ValueError: if these are the artifacts of none.
    """
    try:
        passes, sizes = decode_outline(artifacts[_FAMILY])
        if not 2 <= len(sizes) <= MOST_KNOWN:
            raise ValueError(f"it is of {len(sizes)} programs")
        known = [
            KnownProgram(decode(artifacts[f"{_PROGRAM}{number}"]), each, artifacts.get(f"{_REGIONS}{number}"))
            for number, each in enumerate(sizes)
        ]
        return Family(decode_reads(artifacts[_READS]), passes, known)
    except ValueError:
        raise
    except Exception as error:  # programs that are none of one family
        raise ValueError(f"no family: {error!r}") from error


def _list_families(store: Store, form: Key, *, asks_remote: bool = False) -> Iterator[tuple[str, Family]]:
    for slot in FAMILY_SLOTS:
        artifacts = store.peek(form, slot, asks_remote=asks_remote)
        if artifacts is None:
            asks_remote = False
            continue
        try:
            yield slot, decode_family(artifacts)
        except ValueError as error:
            logger.info("a stored family does not decode", exc_info=error)
            store.discard(form, slot, f"a stored family that does not decode: {type(error).__name__}")


def _learn_all(family: Family, known: tuple[KnownProgram, ...]) -> None:
    for program in known:
        try:
            family.learn(program)
        except Declined as error:  # then it is left to what this process has seen
            error.require(Scope.LENGTH)
            logger.info("a stored program is of no family here: %s", error)


logger = logging.getLogger("fusioncache")

MOST_LOOSE = 5
"""How many programs are tried for a family. Each try takes as long as Thunder's passes."""


class Families:
    """The families that are known of one form of programs.

    Args:
        form: of the programs.
    """

    def __init__(self, form: Key) -> None:
        self._form = form
        self._families: list[Family] | None = None
        self._loose: list[tuple[tuple[Read, ...], KnownProgram]] = []

    def fill(self, derivation: Derivation) -> Candidate | None:
        """Returns the program that Thunder would derive for a call; None if that is not known from other lengths."""
        reason = None
        for family in self._list_families(derivation):
            try:
                check_reads(family.reads, derivation)
                with derivation.keeper.time("fill"):
                    candidate = _fill(family, derivation)
                derivation.is_in_family = family.is_stored
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

    def _list_families(self, derivation: Derivation) -> tuple[Family, ...]:
        """Returns the families, of which the store is asked once."""
        if self._families is None:
            self._families = []  # whatever goes wrong here, it does so once
            self._families += _load_families(derivation, self._form)
        return tuple(self._families)

    def unite(
        self, derivation: Derivation, journal: Journal, program: KnownProgram, others: Iterable[KnownProgram]
    ) -> None:
        """Makes a family of a program and the first of others that differs from it in numbers alone.

        Finds out what Thunder's passes look at there. Whatever goes wrong, they go over each further length.

        Args:
            derivation: of one of them, with the reads of all.
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
        self._families = [*(each for each in self._families or () if not each.is_same(family)), family]
        _keep(family, derivation, self._form)

    def learn(self, derivation: Derivation, journal: Journal | None) -> None:
        """Takes one more program: to tell numbers apart that were equal so far, or for a family that is to come.

        Args:
            derivation: of the program.
            journal: what is done in it, if that was proved.
        """
        program, reads = derivation.program, derivation.reads
        if program is None or reads is None:
            return
        families = [family for family in self._families or () if family.reads == reads]
        for family in families:
            try:
                if family.learn(program):
                    _keep(family, derivation, self._form)
            except Declined as error:
                error.require(Scope.LENGTH)
                logger.info("a program is of no family any more: %s", error)
                self._families = [each for each in self._families or () if each is not family]
                _tell_store(derivation, partial(forget_family, form=self._form, family=family))
        # What was derived from something else may differ in numbers of which sizes only happen to be the values.
        others = [each for read, each in self._loose if read == reads]
        is_new = derivation.is_replayed and not any(family.fits(program.sizes) for family in families)
        if len(self._loose) < MOST_LOOSE:
            if is_new and journal is not None and others:
                self.unite(derivation, journal, program, others)
            self._loose.append((reads, program))


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
    keeper, call = derivation.keeper, derivation.call
    filled, regions = family.fill(derivation.sizes, lambda found: keeper.identify(found, call))
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
            identities = keeper.identify(known.templates(), derivation.call)
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
