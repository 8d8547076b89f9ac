"""One program at several lengths, as one with numbers to be filled in: what is derived for a further length is nothing.

Thunder's passes went over the program at two lengths or more. They were gone through once more with symbols for sizes,
which told what they look at. Where all of that comes out the same at another length, Thunder would make the program
that is known, with other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusioncache.accelerators.programs.filling import FilledProgram, Identify, ProgramForm
from fusioncache.accelerators.programs.general import GeneralProgram, generalize, list_templates
from fusioncache.accelerators.programs.text import ProgramText, Read
from fusioncache.accelerators.sizes.arguments import ArgumentSizes
from fusioncache.accelerators.sizes.pass_journal import PassJournal
from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.kept_regions import KeptRegions, decode_regions
from fusioncache.observe.record.observations import PlacementRecord

MOST_KNOWN = 6
"""Of how many programs a family is made. Each tells apart what was equal in all before."""


@dataclass(frozen=True, slots=True)
class KnownProgram:
    """A program that Thunder derived, or would have.

    Attributes:
        text: its traces.
        sizes: of its arguments.
        regions: what a run has on record of its regions, if that is known.
    """

    text: ProgramText
    sizes: ArgumentSizes
    regions: bytes | None

    def list_placements(self) -> tuple[PlacementRecord, ...]:
        """Returns where the collectives of its traces are, without the names of calls, which templates have of sizes.

        Raises:
            Declined: if something was chosen that may depend on sizes, such as a plan of a residual stream.
        """
        kept = None if self.regions is None else decode_regions(self.regions, "", 0)
        if kept is None or kept.choices:
            raise Declined("the plan for its residual streams may differ", Scope.LENGTH)
        return tuple(replace(placement, calls=()) for placement in kept.placements)


class Family:
    """What programs of one form have in common.

    Args:
        reads: what they were derived from besides.
        passes: what Thunder's passes look at.
        known: programs that Thunder derived, two or more.

    Attributes:
        reads: as above.
        passes: as above.
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
        self._known = tuple(known)
        self._general = self._generalize(self._known)
        self._form: ProgramForm | None = None
        self._digests = list_digests(known[0].text)
        kept = known[0].regions
        self._regions = None if kept is None else decode_regions(kept, None, 0)

    @property
    def known(self) -> tuple[KnownProgram, ...]:
        """The programs that it is made of."""
        return self._known

    def _generalize(self, known: Sequence[KnownProgram]) -> GeneralProgram:
        programs = [(each.text, self.passes.read(each.sizes)) for each in known]
        return generalize(programs, self.passes.expressions, self.passes.shapes)

    def is_same(self, other: Family) -> bool:
        """Tells whether another family is of the same programs, whichever of these it knows."""
        return self.reads == other.reads and _forget_places(self.passes) == _forget_places(other.passes)

    def fits(self, sizes: ArgumentSizes) -> bool:
        """Tells whether passes would do the same for arguments of these sizes."""
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
        if len(self._known) >= MOST_KNOWN or any(each.sizes == program.sizes for each in self._known):
            return False
        try:
            numbers = self.passes.check(program.sizes)
        except Declined as declined:
            declined.require(Scope.LENGTH)
            return False
        if not self.passes.can_compute_all(numbers):
            return False
        known = (*self._known, program)
        self._general, self._known, self._form = self._generalize(known), known, None
        return True

    def prepare(self) -> None:
        """Makes what a program is filled into, which takes longer than to fill one in: Python compiles it.

        Raises:
            Declined: if a number is where none can be filled in.
        """
        if self._form is None:
            self._form = ProgramForm(self._general)

    def fill(self, sizes: ArgumentSizes, identify: Identify) -> tuple[FilledProgram, KeptRegions | None]:
        """Returns the program for arguments of these sizes, and what is on record of its regions, if that is known.

        Raises:
            Declined: if Thunder's passes might do something else.
            Declined: if a number is not known.
        """
        self.prepare()
        assert self._form is not None
        filled = self._form.fill(self.passes.check(sizes), identify)
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
