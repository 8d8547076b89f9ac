"""A program that Thunder derives at this moment: what it takes to keep it, to explain it, and to verify a stored one.

A run that loads its programs traces nothing, and yet its regions are those of the traces: they share templates, have
plans, and come from lines of the model. So what a run has on record of them is kept beside the program, and counted
again where it is loaded. In verify mode a stored program is derived again, and its traces are compared with the new
ones.
"""

from __future__ import annotations

import difflib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.programs import Call, Candidate, ProgramKeeper, keep_program
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.accelerators.programs.text import ProgramText, Read, ReadDifference
from fusioncache.accelerators.sizes.journal import FirstTraces, Journal
from fusioncache.accelerators.sizes.values import ArgumentSizes
from fusioncache.ir import Declined, Key, Scope
from fusioncache.observe.explain.difference import find_nearest
from fusioncache.observe.explain.program_difference import (
    ProgramDifference,
    compare_program_keys,
    compare_read,
    write_program_miss,
)
from fusioncache.observe.record.kept_regions import decode_regions, encode_regions
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import ChoiceRecord, PlacementRecord, RegionRecord
from fusioncache.process.collector import without_collector
from fusioncache.process.secrets import blur, hide_line, hide_texts, reveal_texts
from fusioncache.store import Store
from fusioncache.store.entry import is_program
from fusioncache.verification.verifier import VerificationError

_MOST_COMPARED = 32
"""How many stored programs of one name are compared, the newest first."""


def explain_program_miss(name: str, key: Key, differences: Sequence[ReadDifference], store: Store) -> None:
    """Prints one sentence to stderr, unless the store has no program of this name.

    Args:
        name: of the model.
        key: of its program.
        differences: what differs from the stored programs with this key, for each what was found first.
        store: has the others.
    """
    found = [compare_read(each.read.kind, each.read.name, each.read.text, each.now) for each in differences]
    found = found or [*_compare_keys(name, key, store)]
    if found:
        text = write_program_miss(name, found[0], len(found) - 1)
        print(f"fusioncache: {text}", file=sys.stderr, flush=True)


def _compare_keys(name: str, key: Key, store: Store) -> Sequence[ProgramDifference]:
    entries = [each for each in store.entries() if is_program(each.backend) and each.name == name][:_MOST_COMPARED]
    known = [store.entry(each.digest, each.backend) for each in entries]
    # The last one of several that are equally near is taken: the newest.
    texts = [entry.texts for entry in reversed(known) if entry is not None and not entry.is_outdated]
    nearest = find_nearest(key.texts, texts)
    return () if nearest is None else compare_program_keys(texts[nearest], key.texts)


def collect_regions(ledger: Ledger, trace_number: int) -> bytes | None:
    """Returns the regions and streams of what was just derived; None if several models were traced meanwhile.

    Args:
        ledger: has them in its history.
        trace_number: how many forward traces there were before.
    """
    history = ledger.history
    if history.traces != trace_number + 1:
        return None
    regions = (replace(region, reason=_lasting(region)) for region in history.records(RegionRecord, trace_number))
    choices = history.records(ChoiceRecord, trace_number)
    return encode_regions(regions, choices, history.records(PlacementRecord, trace_number))


def _lasting(region: RegionRecord) -> str | None:
    """Returns why a region is left as Thunder made it; of one that has a template only the process can say it."""
    return region.reason if region.digest is None else None


_VERIFIED = re.compile(r"\b(\w+)_verified_\d+\b")
"""A call of a template whose results are compared; ``Verifier.verify`` has given it its name."""
_MOST_LINES = 40


def compare_programs(name: str, stored: ProgramText, entry: Any) -> None:
    """Compares the traces of a stored program with what Thunder derived just now.

    Args:
        name: of the model.
        stored: the program.
        entry: Thunder's own.

    Raises:
        VerificationError: if any trace is another one.
    """
    traces = {
        "prologue": (stored.prologue, entry.prologue_traces),
        "forward": (stored.computation, entry.computation_traces),
        "backward": (stored.backward, entry.backward_traces),
        "epilogue": (stored.epilogue, entry.epilogue_traces),
    }
    for what, (text, derived) in traces.items():
        try:
            before = list(_normalize(reveal_texts(text.source))) if text else []
        except ValueError:  # which is no difference: the program does not fit here
            return
        after = [*_normalize(str(derived[-1].python(include_decorators=what != "prologue")))] if derived else []
        if before != after:
            lines = list(difflib.unified_diff(before, after, "stored", "derived", lineterm=""))
            shown = blur("\n".join(lines[:_MOST_LINES]))
            raise VerificationError(
                f"the stored program of {name} is not what Thunder makes now: its {what} trace differs.\n{shown}"
            )


def _normalize(source: str) -> Iterator[str]:
    """Yields the statements of a trace without comments, which have seconds and places of files, and without texts."""
    try:
        source = hide_texts(source)
    except ValueError:
        source = "\n".join(map(hide_line, source.splitlines()))
    for line in source.splitlines():
        statement = line.partition("  #")[0].rstrip()
        if statement and not statement.lstrip().startswith("#"):
            yield _VERIFIED.sub(r"\1", statement)


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


@dataclass(slots=True, eq=False)
class Derivation:
    """A program that Thunder derives for a call.

    Attributes:
        keeper: keeps it.
        call: the call.
        key: of the program, from before anything was derived.
        definitions: named what is in the key, and has the describer that described the rest.
        unfit: the slots of stored programs that were tried for this call. Once it is derived, none of them did fit.
        expected: the stored program that it should be, in verify mode.
        differences: for each stored program that was derived from something else, what that is.
        is_kept: whether it is to be kept in the store.
        form: what its key has in common with those at other sizes; None unless requested.
        sizes: of its arguments.
        journal: what it did with sizes, if that was watched.
        first: Thunder's first traces, where its transforms write into those that they are given.
        reads: what it was derived from, as soon as that is known.
        program: what was derived, if that is kept.
    """

    keeper: ProgramKeeper
    call: Call
    key: Key
    definitions: Definitions
    unfit: list[str] = field(default_factory=list)
    expected: Candidate | None = None
    differences: list[ReadDifference] = field(default_factory=list)
    is_kept: bool = True
    form: Key | None = None
    sizes: ArgumentSizes = field(default_factory=dict)
    journal: Journal | None = None
    first: FirstTraces | None = None
    reads: tuple[Read, ...] | None = None
    program: KnownProgram | None = None
    _recorder: Recorder | None = None
    _started: float = field(default_factory=time.perf_counter)
    _trace_number: int = field(init=False)

    def __post_init__(self) -> None:
        """Notes which forward trace of the run comes next: that of this program, if no other thread derives one."""
        self._trace_number = self.keeper.ledger.history.traces

    def begin(self) -> None:
        """Has helpers start that will compile its templates, and Thunder forget the derivatives of earlier programs.

        These may be by code of others that stood in Thunder's tables then and does not now. The key would not tell.
        """
        from fusioncache.thunder_adapter.accelerator_api import vjp_utils

        self.keeper.start_helpers()
        vjp_utils._cache.clear()

    def may_be(self, candidate: Candidate) -> bool:
        """True if a stored program was derived from the same, as far as it was recorded."""
        difference = self.keeper.find_difference(candidate.reads, self.definitions.describer)
        if difference is not None:
            self.differences.append(difference)
            return False
        self.unfit.append(candidate.slot)
        return True

    def explain(self) -> None:
        """Says why there is no stored program for the call, if that was asked for."""
        store = self.keeper.cache.store
        if self.keeper.explains and store is not None:
            explain_program_miss(self.call.name, self.key, self.differences, store)

    def record[T](self, interpret: Callable[[], T]) -> T:
        """Interprets the function, and records what is read, if it is to be kept."""
        if not self.is_kept:
            return interpret()
        try:
            recorder = Recorder(self.definitions.describer)
            recorder.__enter__()
        except Exception as error:
            self.keeper.report_failure(error)
            return interpret()
        try:
            return interpret()
        finally:
            recorder.__exit__(None, None, None)
            self._recorder = recorder

    def finish(self, entry: Any) -> bool:
        """Keeps the program that Thunder derived, as an entry of its own; returns whether it was kept.

        Raises:
            VerificationError: if it should have been another one.
        """
        seconds = time.perf_counter() - self._started
        if self.expected is not None:
            compare_programs(self.call.name, self.expected.text, entry)
        if self.keeper.verifies or not self.is_kept:
            return False
        try:
            with self.keeper.time("record"), without_collector():
                return self._keep(entry, seconds)
        except Exception as error:
            self.keeper.report_failure(error)
            return False

    def _keep(self, entry: Any, seconds: float) -> bool:
        store = self.keeper.cache.store
        if store is None or (self._recorder is None and self.reads is None):
            return False
        text = self.keeper.write(entry, self.call)
        if self._recorder is not None:
            reads = self._recorder.reads()
            self._check_key()
            self.reads = reads
        assert self.reads is not None
        regions = collect_regions(self.keeper.ledger, self._trace_number)
        self.program = KnownProgram(text, self.sizes, regions)
        about: dict[str, Any] = {"name": self.call.name, "seconds": seconds, "unfit": self.unfit, "regions": regions}
        kept = keep_program(store, self.key, text, self.reads, **about)
        if kept:
            self.keeper.ledger.emit("program made", model=self.call.name)
            self.keeper.cache.write_record()
        return kept

    @property
    def is_replayed(self) -> bool:
        """Whether its operations were called again, and nothing was interpreted."""
        return self.reads is not None and self._recorder is None

    def _check_key(self) -> None:
        """Checks that the program is for the key that it was derived for.

        Raises:
            Declined: if anything in it is another thing now.
        """
        now, _ = self.keeper.describe(self.call)
        if now != self.key:
            differences = compare_program_keys(self.key.texts, now.texts)
            what = differences[0].what if differences else "something"
            raise Declined(f"{what} changed while the program was traced", Scope.PROGRAM)
