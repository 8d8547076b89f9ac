"""The derivation of a program by Thunder: stores the result, explains a miss, and verifies a stored program.

A run that loads its programs traces nothing, yet it executes the regions of their traces: these share templates, have
plans, and come from lines of the model. So a run's record of the regions is stored beside the program, and counted
again where the program is loaded. In verify mode a stored program is derived again, and its traces are compared with
the new ones.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.programs import Call, Candidate, ProgramKeeper, store_program
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
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import ChoiceRecord, PlacementRecord, RegionRecord
from fusioncache.observe.record.region_codec import ProgramRecords, decode_regions, encode_regions
from fusioncache.process.secrets import blur, hide_line, hide_texts, reveal_texts
from fusioncache.process.warning import write_line
from fusioncache.store import Store
from fusioncache.store.entry import is_program
from fusioncache.verification.verifier import VerificationError

_MOST_COMPARED = 32
"""How many stored programs of one name are compared, the newest first."""


def explain_program_miss(name: str, key: Key, differences: Sequence[ReadDifference], store: Store) -> None:
    """Prints one sentence to stderr on why no stored program fits, unless the store has none of this name.

    Args:
        name: of the model.
        key: of its program.
        differences: the first read that differs, for each stored program with this key.
        store: contains the programs with other keys.
    """
    found = [compare_read(each.read.kind, each.read.name, each.read.text, each.now) for each in differences]
    found = found or [*_compare_keys(name, key, store)]
    if found:
        text = write_program_miss(name, found[0], len(found) - 1)
        write_line(f"fusioncache: {text}")


def _compare_keys(name: str, key: Key, store: Store) -> Sequence[ProgramDifference]:
    known = [each for each in store.entries() if is_program(each.backend) and each.name == name][:_MOST_COMPARED]
    # Of several that are equally near, the last is taken: the newest.
    texts = [entry.texts for entry in reversed(known) if not entry.is_outdated]
    nearest = find_nearest(key.texts, texts)
    return () if nearest is None else compare_program_keys(texts[nearest], key.texts)


def collect_regions(ledger: Ledger, trace_number: int) -> bytes | None:
    """Returns the encoded record of the program that was just derived; None if other models were traced meanwhile.

    It contains the regions, the choices for residual streams, and the placements of collectives.

    Args:
        ledger: its history contains them.
        trace_number: how many forward traces there were before.
    """
    history = ledger.history
    if history.traces != trace_number + 1:
        return None
    regions = (replace(region, reason=_lasting(region)) for region in history.records(RegionRecord, trace_number))
    choices = history.records(ChoiceRecord, trace_number)
    return encode_regions(regions, choices, history.records(PlacementRecord, trace_number))


def _lasting(region: RegionRecord) -> str | None:
    """Returns the reason of a bypass; None for a region with a template, whose reason holds in this process only."""
    return region.reason if region.digest is None else None


_VERIFIED = re.compile(r"\b(\w+)_verified_\d+\b")
"""A call of a template whose results are compared, with the name that ``Verifier.verify`` gives it."""
_MOST_LINES = 40


def compare_programs(name: str, stored: ProgramText, entry: Any) -> None:
    """Raises ``VerificationError`` if the traces of a stored program differ from those that Thunder just derived.

    Args:
        name: of the model.
        stored: the stored program.
        entry: Thunder's new cache entry.

    Raises:
        VerificationError: if a trace differs.
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
        except ValueError:  # no difference: the program does not fit this process
            return
        after = [*_normalize(str(derived[-1].python(include_decorators=what != "prologue")))] if derived else []
        if before != after:
            lines = list(difflib.unified_diff(before, after, "stored", "derived", lineterm=""))
            shown = blur("\n".join(lines[:_MOST_LINES]))
            raise VerificationError(
                f"the stored program of {name} is not what Thunder makes now: its {what} trace differs.\n{shown}"
            )


def _normalize(source: str) -> Iterator[str]:
    """Yields the statements of a trace, with digests for texts, and without comments, which contain times and paths."""
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
    """A program that Thunder derived or would derive.

    Attributes:
        text: its traces.
        sizes: of its arguments.
        regions: the encoded record of its regions, or None.
    """

    text: ProgramText
    sizes: ArgumentSizes
    regions: bytes | None

    def read_records(self) -> ProgramRecords:
        """Returns the record of its regions.

        Raises:
            Declined: if a choice may depend on sizes, such as the plan of a residual stream, or the record is missing.
        """
        kept = None if self.regions is None else decode_regions(self.regions)
        if kept is None or kept.choices:
            raise Declined("the plan for its residual streams may differ", Scope.LENGTH)
        return kept


@dataclass(slots=True, eq=False)
class Derivation:
    """The derivation of a program by Thunder for one call.

    Attributes:
        keeper: stores the program.
        call: the call.
        key: of the program, computed before the derivation.
        definitions: named the values in the key; its describer described the rest of the key.
        unfit: the slots of stored programs that were tried for this call. None of them fits if the program is derived.
        expected: the stored program that it must equal, in verify mode.
        differences: the first read that differs, for each stored program that was derived from other values.
        is_kept: whether the program is to be stored.
        form: the part of its key that programs at other sizes share; None unless requested.
        sizes: of its arguments.
        journal: the journal of its tracing, if sizes were watched.
        first: Thunder's first traces, if its transforms write into the traces that they are given.
        reads: recorded, or those of the replayed journal; None until they are known.
        program: the derived program, once it is written as data.
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
        """Stores the number of the run's next forward trace: that of this program, if no other thread derives one."""
        self._trace_number = self.keeper.ledger.history.traces

    def begin(self) -> None:
        """Starts the helpers that will compile its templates, and clears Thunder's cache of earlier derivatives.

        These may come from foreign code that has left Thunder's tables since. The key would not show that.
        """
        from fusioncache.thunder_adapter.accelerator_api import vjp_utils

        self.keeper.start_helpers()
        vjp_utils._cache.clear()

    def has_equal_reads(self, candidate: Candidate) -> bool:
        """True if the reads of a stored program are unchanged. Records the first difference, or the slot as tried."""
        difference = self.keeper.find_difference(candidate.reads, self.definitions.describer)
        if difference is not None:
            self.differences.append(difference)
            return False
        self.unfit.append(candidate.slot)
        return True

    def explain(self) -> None:
        """Prints why no stored program fits the call, if explanations are requested."""
        if self.keeper.explains:
            explain_program_miss(self.call.name, self.key, self.differences, self.keeper.store)

    def record[T](self, interpret: Callable[[], T]) -> T:
        """Returns the result of interpreting the function. Records its reads if the program is to be stored."""
        if not self.is_kept:
            return interpret()
        try:
            self._recorder = Recorder(self.definitions.describer)
        except Exception as error:
            self.keeper.report_failure(error)
            return interpret()
        with self._recorder.observing():
            return interpret()

    def finish(self, entry: Any) -> bool:
        """Stores the program that Thunder derived, as a separate entry; returns whether it was stored.

        Raises:
            VerificationError: if it differs from the expected program.
        """
        seconds = time.perf_counter() - self._started
        if self.expected is not None:
            compare_programs(self.call.name, self.expected.text, entry)
        if self.keeper.verifies or not self.is_kept:
            return False
        with self.keeper.storing() as store:
            return self._keep(store, entry, seconds)
        return False  # the context has reported an error

    def _keep(self, store: Store, entry: Any, seconds: float) -> bool:
        if self._recorder is None and self.reads is None:
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
        kept = store_program(store, self.key, text, self.reads, **about)
        if kept:
            self.keeper.ledger.emit("program made", model=self.call.name)
            self.keeper.cache.write_record()
        return kept

    @property
    def is_replayed(self) -> bool:
        """Whether a journal was replayed instead of interpreting the function."""
        return self.reads is not None and self._recorder is None

    def _check_key(self) -> None:
        """Raises ``Declined`` if the key changed while the program was derived.

        Raises:
            Declined: if the key of the call differs now.
        """
        now, _ = self.keeper.describe(self.call)
        if now != self.key:
            differences = compare_program_keys(self.key.texts, now.texts)
            what = differences[0].what if differences else "something"
            raise Declined(f"{what} changed while the program was traced", Scope.PROGRAM)
