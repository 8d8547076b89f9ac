"""The programs of the models that one transform compiles: found in the store, or derived by Thunder and kept there.

What Thunder makes of a model for one kind of input outlives the process. ``program_list.py`` stands where Thunder
looks for what it derived before; it asks here. Nothing that goes wrong here reaches a model, but for a difference that
verify mode finds.

Several programs may have one key, as reads tell them apart: code and globals that only the derivation knew of. Each is
an entry of the store by itself, under the same key and one of a few words in place of a backend's name.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fusioncache.accelerators.programs.build import (
    CompiledProgram,
    build_program,
    compile_program,
    encode_code,
    write_program,
)
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.function_map import epoch_of_process
from fusioncache.accelerators.programs.general import Identity
from fusioncache.accelerators.programs.key import make_key
from fusioncache.accelerators.programs.options import find_job_references, resolve_of_job
from fusioncache.accelerators.programs.splits import split_memory_of_process
from fusioncache.accelerators.programs.template_loader import TemplateLoader, find_references
from fusioncache.accelerators.programs.text import (
    ProgramText,
    Read,
    ReadDifference,
    TemplateReference,
    decode,
    decode_reads,
    encode,
    encode_reads,
    find_difference,
)
from fusioncache.cache.generals import Generation
from fusioncache.cache.packing import TEMPLATES, write_templates
from fusioncache.cache.peers import Ask, Helpers
from fusioncache.humanize import format_duration
from fusioncache.ir import Key, Scope, is_declined
from fusioncache.observe.record.kept_regions import KeptRegions, decode_regions
from fusioncache.process.settings import PROGRAMS
from fusioncache.process.warning import warn
from fusioncache.store import Store, StoredArtifacts
from fusioncache.store.entry import PROGRAM_SLOTS
from fusioncache.store.store import WRITE_SECONDS
from fusioncache.template.plan import list_graphs
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.graph_names import graph_names_of_process
from fusioncache.transform.passes import Accelerator
from fusioncache.transform.templates import Environments, read_once
from fusioncache.transform.transform import TemplateTransform

logger = logging.getLogger("fusioncache")

PROGRAM = "program"
"""The artifact with the traces."""
READS = "reads"
"""The artifact with what the derivation read."""
BYTECODE = "bytecode"
"""The artifact with what Python compiled of the traces. It may be missing, and is not trusted: see ``build.py``."""
REGIONS = "regions"
"""The artifact with what a run has on record of the traces' regions, for people: see ``kept_regions.py``."""


_STALE = "a stored program that does not decode"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored program, which may be reused where its reads are what they were.

    Attributes:
        slot: the word that it is stored under.
        text: its traces.
        reads: what its derivation read.
        seconds: that deriving it took.
        bytecode: what Python compiled of the traces; None if that is not there.
        regions: what a run has on record of the traces' regions, as bytes if it is stored; None if that is not there.
        compiled: what Python made of the traces, if that is at hand.
    """

    slot: str
    text: ProgramText
    reads: tuple[Read, ...]
    seconds: float
    bytecode: bytes | None
    regions: bytes | KeptRegions | None = None
    compiled: CompiledProgram | None = None


def find_candidates(store: Store, key: Key) -> Iterator[Candidate]:
    """Returns the programs that are stored for a key. What cannot be read is removed. Never raises.

    They are read one by one, and only as far as they are asked for. Slots are taken in their order, so nothing is
    looked for behind one that is free.
    """
    for slot in PROGRAM_SLOTS:
        artifacts = store.load(key, slot)
        if artifacts is None:
            return
        candidate = _decode(store, key, slot, artifacts)
        if candidate is not None:
            yield candidate


def _decode(store: Store, key: Key, slot: str, artifacts: StoredArtifacts) -> Candidate | None:
    """Returns what is in a slot. What does not decode is removed."""
    try:
        text, reads = decode(artifacts[PROGRAM]), decode_reads(artifacts[READS])
        return Candidate(slot, text, reads, artifacts.seconds, artifacts.get(BYTECODE), artifacts.get(REGIONS))
    except (ValueError, KeyError) as error:
        logger.info("a stored program for %s does not decode", key.digest[:12], exc_info=error)
        store.discard(key, slot, f"{_STALE}: {type(error).__name__}")
        return None


def keep_program(
    store: Store,
    key: Key,
    text: ProgramText,
    reads: Collection[Read],
    *,
    name: str,
    seconds: float,
    unfit: Collection[str] = (),
    regions: bytes | None = None,
) -> bool:
    """Keeps a program, unless one with the same reads is there. If all slots are taken, the oldest program goes.

    Args:
        store: where it goes.
        key: that it was derived for.
        text: its traces.
        reads: what its derivation read.
        name: of the model, for people.
        seconds: that deriving it took.
        unfit: the slots with programs that were tried in vain, whatever their reads are.
        regions: what a run has on record of its regions, if that is known.

    Returns:
        Whether it was kept.

    Raises:
        ValueError: if the traces are no Python.
    """
    artifacts = {PROGRAM: encode(text), READS: encode_reads(reads), BYTECODE: encode_code(text)}
    references = text.templates().values()
    graphs = (each for one in references for use in one.uses for each in list_graphs(one.graph, use.arities))
    artifacts[TEMPLATES] = write_templates(graphs)
    known = {} if regions is None else {REGIONS: regions}
    # Of processes that derived the same at once one keeps it, and none takes the slot that another has chosen.
    with store.take_turn(key, PROGRAM_SLOTS[0], WRITE_SECONDS):
        slot = _choose_slot(store, key, frozenset(reads), unfit)
        return slot is not None and store.save(key, slot, {**artifacts, **known}, name=name, seconds=seconds)


def _choose_slot(store: Store, key: Key, reads: frozenset[Read], unfit: Collection[str]) -> str | None:
    """Returns a slot that is free now; None if a program with these reads has one, and may fit."""
    for slot in PROGRAM_SLOTS:
        artifacts = store.load(key, slot)
        candidate = None if artifacts is None else _decode(store, key, slot, artifacts)
        if candidate is None:
            return slot
        if slot not in unfit and frozenset(candidate.reads) == reads:
            return None
    oldest = store.find_oldest(key, PROGRAM_SLOTS)
    store.remove(key, oldest)
    return oldest


MOST_KINDS = 64
"""How many programs of one compiled function are kept in one process: a number that grows is a kind of input each."""


def should_keep_programs(programs: bool | None) -> bool:
    """Returns whether to keep programs, by the option of ``FusionCache`` or else by the environment.

    Raises:
        TypeError: if the option is none of True, False and None.
        ValueError: if the environment says something else than 0 or 1.
    """
    if programs is not None:
        if not isinstance(programs, bool):
            raise TypeError(f"programs must be True, False or None, got {programs!r}")
        return programs
    return PROGRAMS.get_text() != "0"


@dataclass(frozen=True, slots=True)
class Call:
    """The first call of a compiled function with one kind of input.

    Attributes:
        compile_data: what Thunder knows of the function: see ``thunder.common.CompileData``.
        args: of the call.
        kwargs: of the call.
        environments: returns what templates depend on beside their graphs, each of which is read once while a program
            for the call is looked for.
    """

    compile_data: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    environments: Environments = field(default_factory=read_once, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The class of the module, or the name of the function, that is called; of a graph the part of the user's."""
        import torch

        function = self.compile_data.fn
        if (graph := graph_names_of_process().name_of(function)) is not None:
            return graph
        named = type(function) if isinstance(function, torch.nn.Module) else function
        return str(getattr(named, "__qualname__", type(function).__qualname__))


class ProgramKeeper(Accelerator):
    """The accelerator that stores whole programs, and loads those that other processes stored.

    Args:
        transform: makes the programs.
        helpers: compile for their templates; None if each call compiles for itself.
        explains: whether to say on stderr why a program is derived although one like it was derived before.
        verifies: whether a program that is found is derived all the same, and compared.
        replays: whether a program is made from those at other lengths, where that can be.
        lengths: for which templates are compiled before a call has them.

    Attributes:
        cache: has the store.
        ledger: counts.
        explains: as it was given.
        verifies: as it was given.
        replays: as it was given.
        lengths: as it was given.
        epoch: what is known of Thunder for all keys.
    """

    name = "programs"

    def __init__(
        self,
        transform: TemplateTransform,
        helpers: Helpers | None,
        *,
        explains: bool,
        verifies: bool,
        replays: bool,
        lengths: Sequence[int] = (),
    ):
        install_more("stored programs")
        if replays:
            install_more("sizes")
        self.cache, self.ledger = transform.cache, transform.ledger
        self.explains, self.verifies, self.replays, self.lengths = explains, verifies, replays, tuple(lengths)
        self.epoch = epoch_of_process()
        self._backends, self._calls, self._helpers = transform.backends, transform.template_calls, helpers
        self._generations = transform.generations

    def around_splitting(self) -> AbstractContextManager[None]:
        """Returns a context in which the splitter's questions are answered from the store."""
        return split_memory_of_process().answering(self.cache.store)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Adds the seconds of its body to a part of those that programs take."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.ledger.count("program_seconds", time.perf_counter() - start, of=part)

    def describe(self, call: Call) -> tuple[Key, Definitions]:
        """Returns the key of the program for a call, and what named the values that it depends on.

        Raises:
            Declined: if something in it has no value that can be compared, or Thunder may run code of others.
        """
        with self.time("key"):
            key, definitions = make_key(call.compile_data, call.args, call.kwargs, self.epoch)
        definitions.refuse_foreign()
        return key, definitions

    def candidates(self, key: Key) -> Iterator[Candidate]:
        """Returns the programs that the store has for a key, as far as they are asked for."""
        store = self.cache.store
        found = find_candidates(store, key) if store else iter(())
        while True:
            with self.time("load"):
                candidate = next(found, None)
            if candidate is None:
                return
            yield candidate

    def find_difference(self, reads: Iterable[Read], describer: Describer) -> ReadDifference | None:
        """Returns the first thing that the derivation of a program read and that is another one now; None if none is.

        Descriptions go by what was described before. So each candidate has a describer that knows what the key is made
        of and nothing else, as the recorder had that described the reads.
        """
        with self.time("reads"):
            return find_difference(reads, describer.copy())

    def write(self, entry: Any, call: Call) -> ProgramText:
        """Returns what Thunder derived for a call, as data.

        Raises:
            Declined: if another process could not run it.
        """
        templates, of_job = find_references(self._calls.all()), find_job_references(call.compile_data)
        return write_program(entry, call.compile_data.fn, lambda value: templates(value) or of_job(value))

    def build(self, candidate: Candidate, call: Call) -> Any | None:
        """Returns Thunder's entry for a stored program; None if it does not fit here, and that is counted."""
        try:
            with self.time("build"):
                load = self._make_loader(call, self._generations.begin(call.compile_data))
                compiled = candidate.compiled or compile_program(candidate.text, candidate.bytecode)
                resolve = resolve_of_job(call.compile_data, load)
                return build_program(candidate.text, compiled, call.compile_data.fn, resolve)
        except ValueError as error:
            logger.info("a stored program of %s is not used", call.name, exc_info=error)
            self.refuse(f"it cannot be used in this process: {error}")
        except Exception as error:  # whatever it is, Thunder can derive the program
            self.report_failure(error)
        return None

    def identify(self, templates: Mapping[str, TemplateReference], call: Call) -> Mapping[str, Identity]:
        """Returns the digests and the names that the templates of a program have here.

        Raises:
            Declined: if a backend does not have such a template.
        """
        return self._make_loader(call, None).identify(templates)

    def _make_loader(self, call: Call, generation: Generation | None) -> TemplateLoader:
        return TemplateLoader(self.cache, self._backends, self._calls, call.compile_data, generation, call.environments)

    def start_helpers(self) -> None:
        """Has helpers start, as a program is about to be derived whose templates they may compile."""
        if self._helpers is not None:
            self._helpers.get_ready()

    def _compile_beside(self, program: ProgramText) -> None:
        """Has the templates of a program that is not traced compiled beside this process, if the store lacks one."""
        if self._helpers is None:
            return

        def foresee() -> list[Ask]:
            uses = [(each.digest, use) for each in program.templates().values() for use in each.uses if use.layouts]
            wanted = [
                (call, use.arities, layouts)
                for call in self._calls.all()
                for digest, use in uses
                if call.template.key.digest == digest and use.arities in call.arities()
                for layouts in use.layouts
            ]
            return [ask for call, arities, layouts in wanted for ask in call.foresee(arities, layouts)]

        self._helpers.expect(foresee, partial(self.ledger.count, "handed_over"))

    def compile_later(self, templates: Iterable[TemplateReference], call: Call) -> None:
        """Has templates compiled beside this process while nothing else waits for that, for a length to come.

        Raises:
            Declined: if a backend does not have such a template.
        """
        if self._helpers is None:
            return
        loader = self._make_loader(call, None)
        asks = [ask for reference in templates for ask in loader.foresee(reference)]
        count = self.ledger.count
        count("lengths_queued", self._helpers.hand_over_later(asks, partial(count, "lengths_compiled")))

    def note_loaded(self, candidate: Candidate, call: Call, started: float) -> None:
        """Counts a program that runs without having been derived here, and says so if that was asked for."""
        self.ledger.count_program_loaded(call.name, time.perf_counter() - started, candidate.seconds)
        self._compile_beside(candidate.text)
        self._count_regions(candidate.regions, call)
        if self.explains:
            spared = format_duration(candidate.seconds)
            text = f"fusioncache: the program of {call.name} was loaded from the store (tracing it took {spared})."
            print(text, file=sys.stderr, flush=True)
        self.cache.write_record()

    def note_filled(self, candidate: Candidate, call: Call) -> None:
        """Counts a program that runs because it is known at other lengths."""
        self.ledger.emit("program filled", model=call.name)
        self._compile_beside(candidate.text)
        self._count_regions(candidate.regions, call)
        self.cache.write_record_later()

    def _count_regions(self, content: bytes | KeptRegions | None, call: Call) -> None:
        """Counts the regions of a program that was loaded or filled in, and puts them on record.

        Args:
            content: what was kept of them; None if nothing was. What is no bytes has neither streams nor collectives.
            call: that the program is for.
        """
        if content is None:
            return
        ledger, number = self.ledger, self.ledger.history.begin_trace(call.name)
        try:
            kept = decode_regions(content, call.name, number) if isinstance(content, bytes) else content
        except ValueError as error:  # they are for people, and no reason to derive the program
            logger.info("the regions of a stored program of %s are not counted", call.name, exc_info=error)
            return
        counted = []
        about: dict[str, Any] = {"model": call.name, "trace_number": number}
        for region in kept.regions:
            template = self._calls.find_template(region.digest or "")
            if template is None:
                ledger.count_bypass(region.reason or "left as Thunder made it")
                counted.append(replace(region, digest=None, outcome="bypass", **about))
                continue
            hit = self.cache.ledger.has(template)
            ledger.count_region(template, region.arities, hit=hit)
            counted.append(replace(region, outcome="hit" if hit else "miss", **about))
        ledger.history.add(*counted, *kept.choices, *kept.placements)

    def refuse(self, reason: str) -> None:
        """Counts why a program is neither loaded nor kept."""
        logger.info("a program is not stored or not used: %s", reason)
        self.ledger.emit("program refused", reason=reason)

    def report_failure(self, error: Exception) -> None:
        """Counts something that should not have happened: Thunder goes on as if there were no programs."""
        if is_declined(error, Scope.PROGRAM):
            self.refuse(error.reason)
            return
        logger.info("a program can neither be loaded nor stored", exc_info=error)
        if self.ledger.emit("program refused", reason=f"failed: {type(error).__name__}"):
            warn(f"programs are neither loaded nor stored: {type(error).__name__}")


def find_keeper(compile_data: Any) -> ProgramKeeper | None:
    """Returns the keeper of a compiled function's programs; None if they are not kept.

    They are not without a store, for a function with two transforms of ours, each of which would count, or for one that
    caches otherwise than by the values of its inputs.
    """
    from fusioncache.thunder_adapter.api import CACHE_OPTIONS

    if compile_data is None or compile_data.cache_option is not CACHE_OPTIONS.CONSTANT_VALUES:
        return None
    transforms = getattr(compile_data, "transforms", None) or ()
    ours = [each for each in transforms if hasattr(each, "program_keeper")]
    keeper = ours[0].program_keeper if len(ours) == 1 else None
    return keeper if keeper is not None and keeper.cache.store is not None else None
