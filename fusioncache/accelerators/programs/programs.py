"""The programs of the models that one transform compiles: loaded from the store, or derived by Thunder and stored.

So what Thunder makes of a model for one kind of input outlives the process. ``program_list.py`` replaces Thunder's list
of cache entries and calls this module. No error here reaches a model, except for a difference that verify mode finds.

Several programs may have one key. Their reads distinguish them: the code and the globals that only the derivation could
find. Each program is a store entry of its own, under the same key and one of a few slot names in place of a backend's
name.
"""

from __future__ import annotations

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
from fusioncache.accelerators.programs.function_map import key_cache_of_process
from fusioncache.accelerators.programs.general import Identity
from fusioncache.accelerators.programs.key import make_key
from fusioncache.accelerators.programs.options import refer_to_part
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
from fusioncache.cache.peers import Helpers, StoreRequest
from fusioncache.humanize import format_duration
from fusioncache.ir import Key, Scope, is_declined
from fusioncache.observe.record.region_codec import ProgramRecords, decode_regions
from fusioncache.process.collector import without_collector
from fusioncache.process.warning import logger, warn, write_line
from fusioncache.store import Store, StoredArtifacts
from fusioncache.store.entry import PROGRAM_SLOTS
from fusioncache.store.store import WRITE_SECONDS
from fusioncache.template.plan import list_graphs
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.graph_names import graph_names_of_process
from fusioncache.transform.passes import Accelerator
from fusioncache.transform.templates import Environments, read_once
from fusioncache.transform.transform import TemplateTransform

PROGRAM = "program"
"""The artifact with the traces."""
READS = "reads"
"""The artifact with the reads of the derivation."""
BYTECODE = "bytecode"
"""The artifact with the code objects of the traces. It may be missing, and is checked before use: see ``build.py``."""
REGIONS = "regions"
"""The artifact with a run's record of the traces' regions, for reports: see ``region_codec.py``."""


_STALE = "a stored program that does not decode"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored or filled-in program, which may be reused if its reads give the same results.

    Attributes:
        slot: the name of its slot in the store.
        text: its traces.
        reads: of its derivation.
        seconds: that deriving it took.
        bytecode: the stored code objects of the traces; None if they are missing.
        regions: a run's record of the traces' regions, as bytes if it is stored, or None.
        compiled: the code objects of the traces, if this process has them already.
    """

    slot: str
    text: ProgramText
    reads: tuple[Read, ...]
    seconds: float
    bytecode: bytes | None
    regions: bytes | ProgramRecords | None = None
    compiled: CompiledProgram | None = None


def find_candidates(store: Store, key: Key) -> Iterator[Candidate]:
    """Yields the programs that are stored for a key. Removes those that do not decode. Never raises.

    Each is loaded when the caller requests it.
    """
    for slot, candidate in store.read_slots(key, PROGRAM_SLOTS, _decode, _STALE, asks_remote=True):
        yield replace(candidate, slot=slot)


def _decode(artifacts: StoredArtifacts) -> Candidate:
    text, reads = decode(artifacts[PROGRAM]), decode_reads(artifacts[READS])
    return Candidate("", text, reads, artifacts.seconds, artifacts.get(BYTECODE), artifacts.get(REGIONS))


def store_program(
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
    """Stores a program, unless one with the same reads is stored. If all slots are taken, replaces the oldest program.

    Args:
        store: to write to.
        key: that it was derived for.
        text: its traces.
        reads: of its derivation.
        name: of the model, for reports.
        seconds: that deriving it took.
        unfit: slots with programs that did not fit; equal reads there do not prevent storing.
        regions: a run's record of its regions, if there is one.

    Returns:
        Whether it was stored.

    Raises:
        ValueError: if the traces are not valid Python.
    """
    artifacts = {PROGRAM: encode(text), READS: encode_reads(reads), BYTECODE: encode_code(text)}
    references = text.templates().values()
    graphs = (each for one in references for use in one.uses for each in list_graphs(one.graph, use.arities))
    artifacts[TEMPLATES] = write_templates(graphs)
    known = {} if regions is None else {REGIONS: regions}
    # Under the lock: one of several processes that derived the same program stores it, and no slot is chosen twice.
    with store.take_turn(key, PROGRAM_SLOTS[0], WRITE_SECONDS):
        slot = _choose_slot(store, key, frozenset(reads), unfit)
        return slot is not None and store.save(key, slot, {**artifacts, **known}, name=name, seconds=seconds)


def _choose_slot(store: Store, key: Key, reads: frozenset[Read], unfit: Collection[str]) -> str | None:
    """Returns a free slot, freeing the oldest if necessary; None if a stored program has these reads and may fit."""
    known = {each.slot: frozenset(each.reads) for each in find_candidates(store, key)}
    if any(slot not in unfit and other == reads for slot, other in known.items()):
        return None
    slot = store.choose_slot(key, PROGRAM_SLOTS, known)
    if slot in known:
        store.remove(key, slot)
    return slot


MAX_KINDS = 64
"""How many programs of one compiled function a process stores: each value of a growing integer is a kind of input."""


@dataclass(frozen=True, slots=True)
class Call:
    """The first call of a compiled function with one kind of input.

    Attributes:
        compile_data: Thunder's ``thunder.common.CompileData`` of the function.
        args: of the call.
        kwargs: of the call.
        environments: returns the dependencies of a backend's templates besides their graphs; reads them once per
            backend while a program for the call is searched for.
    """

    compile_data: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    environments: Environments = field(default_factory=read_once, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the called function, or of the module's class; for a Dynamo graph, of its part of the user's code."""
        import torch

        function = self.compile_data.fn
        if (graph := graph_names_of_process().name_of(function)) is not None:
            return graph
        named = type(function) if isinstance(function, torch.nn.Module) else function
        return str(getattr(named, "__qualname__", type(function).__qualname__))


class ProgramKeeper(Accelerator):
    """The accelerator that stores whole programs, and loads those that other processes stored.

    Args:
        transform: that compiles the models.
        helpers: compile templates in worker processes; None if each call compiles for itself.
        explains: whether to explain on stderr why a program is derived although a similar one is stored.
        verifies: whether a program that is found is derived all the same, and compared.
        replays: whether programs are filled in or replayed from those at other lengths, where possible.
        lengths: for which templates are compiled before a call has them.

    Attributes:
        cache: has the store.
        ledger: has the counts.
        explains: as passed.
        verifies: as passed.
        replays: as passed.
        lengths: as passed.
        key_cache: the cached names and function maps of this process, for all keys.
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
        self.key_cache = key_cache_of_process()
        self._backends, self._calls, self._helpers = transform.backends, transform.template_calls, helpers
        self._generations = transform.generations

    def around_splitting(self, graph: Any) -> AbstractContextManager[None]:
        """Returns a context in which the splitter looks up supported operations in the store."""
        return split_memory_of_process().answering(self.cache.store)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Adds the seconds of its body to a part of ``Stats.program_seconds``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.ledger.count("program_seconds", time.perf_counter() - start, of=part)

    @property
    def store(self) -> Store:
        """The cache's store. There is one, or else ``find_keeper`` would not have returned this keeper."""
        assert self.cache.store is not None
        return self.cache.store

    @contextmanager
    def storing(self) -> Iterator[Store]:
        """Yields the store. Counts an error of the body and suppresses it: only later processes need what it stores."""
        try:
            with self.time("record"), without_collector():
                yield self.store
        except Exception as error:
            self.report_failure(error)

    def describe(self, call: Call) -> tuple[Key, Definitions]:
        """Returns the key of the program for a call, and the ``Definitions`` that named its values.

        Raises:
            Declined: if the key depends on something that cannot be compared, or Thunder may run foreign code.
        """
        with self.time("key"):
            key, definitions = make_key(call.compile_data, call.args, call.kwargs, self.key_cache)
        definitions.refuse_foreign()
        return key, definitions

    def candidates(self, key: Key) -> Iterator[Candidate]:
        """Yields the programs that the store has for a key. Loads each when the caller requests it."""
        found = find_candidates(self.store, key)
        while True:
            with self.time("load"):
                candidate = next(found, None)
            if candidate is None:
                return
            yield candidate

    def find_difference(self, reads: Iterable[Read], describer: Describer) -> ReadDifference | None:
        """Returns the first read of a program that gives another result now, or None.

        A description depends on what the describer described before. So each candidate gets a copy that has described
        the key and nothing else, like the describer with which the reads were recorded.
        """
        with self.time("reads"):
            return find_difference(reads, describer.copy())

    def write(self, entry: Any, call: Call) -> ProgramText:
        """Returns the program in Thunder's entry for a call as data.

        Raises:
            Declined: if another process could not run it.
        """
        find_template, data = find_references(self._calls.all()), call.compile_data
        return write_program(entry, data.fn, lambda value: find_template(value) or refer_to_part(value, data))

    def build(self, candidate: Candidate, call: Call) -> Any | None:
        """Returns a cache entry for Thunder made of a program; None, and counts the reason, if that is impossible."""
        try:
            with self.time("build"):
                load = self._make_loader(call, self._generations.begin(call.compile_data))
                compiled = candidate.compiled or compile_program(candidate.text, candidate.bytecode)
                return build_program(candidate.text, compiled, call.compile_data.fn, load)
        except ValueError as error:
            logger.info("a stored program of %s is not used", call.name, exc_info=error)
            self.refuse(f"it cannot be used in this process: {error}")
        except Exception as error:  # on any error Thunder can still derive the program
            self.report_failure(error)
        return None

    def identify(self, templates: Mapping[str, TemplateReference], call: Call) -> Mapping[str, Identity]:
        """Returns the names and digests of a program's templates in this process.

        Raises:
            Declined: if a backend does not have such a template.
        """
        return self._make_loader(call, None).identify(templates)

    def _make_loader(self, call: Call, generation: Generation | None) -> TemplateLoader:
        return TemplateLoader(self.cache, self._backends, self._calls, call.compile_data, generation, call.environments)

    def start_helpers(self) -> None:
        """Starts the helpers: they may compile templates of a program that is about to be derived or filled in."""
        if self._helpers is not None:
            self._helpers.get_ready()

    def _precompile(self, program: ProgramText) -> None:
        """Has helpers compile the templates of a program that is not traced, if one is missing from the store."""
        if self._helpers is None:
            return

        def foresee() -> list[StoreRequest]:
            uses = [(each.digest, use) for each in program.templates().values() for use in each.uses if use.layouts]
            wanted = [
                (call, use.arities, layouts)
                for call in self._calls.all()
                for digest, use in uses
                if call.template.key.digest == digest and use.arities in call.arities()
                for layouts in use.layouts
            ]
            return [request for call, arities, layouts in wanted for request in call.foresee(arities, layouts)]

        self._helpers.expect(foresee, partial(self.ledger.count, "handed_over"))

    def compile_later(self, templates: Iterable[TemplateReference], call: Call) -> None:
        """Has idle helpers compile templates for a length that may come later.

        Raises:
            Declined: if a backend does not have such a template.
        """
        if self._helpers is None:
            return
        loader = self._make_loader(call, None)
        requests = [request for reference in templates for request in loader.foresee(reference)]
        count = self.ledger.count
        count("lengths_queued", self._helpers.hand_over_later(requests, partial(count, "lengths_compiled")))

    def note_loaded(self, candidate: Candidate, call: Call, started: float) -> None:
        """Counts a program that was loaded from the store, and prints that to stderr if explanations are enabled."""
        self.ledger.count_program_loaded(call.name, time.perf_counter() - started, candidate.seconds)
        self._precompile(candidate.text)
        self._count_regions(candidate.regions, call)
        if self.explains:
            spared = format_duration(candidate.seconds)
            write_line(f"fusioncache: the program of {call.name} was loaded from the store (tracing it took {spared}).")
        self.cache.write_record()

    def note_filled(self, candidate: Candidate, call: Call) -> None:
        """Counts a program that was filled in from those at other lengths."""
        self.ledger.emit("program filled", model=call.name)
        self._precompile(candidate.text)
        self._count_regions(candidate.regions, call)
        self.cache.write_record_later()

    def _count_regions(self, content: bytes | ProgramRecords | None, call: Call) -> None:
        """Counts the regions of a program that was loaded or filled in, and adds them to the record.

        Args:
            content: the record of them, as bytes if it was stored, or None. That of a filled-in program
                is decoded, and has no choices for residual streams.
            call: that the program is for.
        """
        if content is None:
            return
        ledger, number = self.ledger, self.ledger.history.begin_trace(call.name)
        try:
            kept = decode_regions(content) if isinstance(content, bytes) else content
        except ValueError as error:  # they are only for reports, so the program is used all the same
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
        choices = (replace(each, **about) for each in kept.choices)
        placements = (replace(each, **about) for each in kept.placements)
        ledger.history.add(*counted, *choices, *placements)

    def refuse(self, reason: str) -> None:
        """Counts why a program is not loaded or not stored."""
        logger.info("a program is not stored or not used: %s", reason)
        self.ledger.emit("program refused", reason=reason)

    def report_failure(self, error: Exception) -> None:
        """Counts an error; Thunder continues as if there were no stored programs. Warns if it is unexpected and new."""
        if is_declined(error, Scope.PROGRAM):
            self.refuse(error.reason)
            return
        logger.info("a program can neither be loaded nor stored", exc_info=error)
        if self.ledger.emit("program refused", reason=f"failed: {type(error).__name__}"):
            warn(f"programs are neither loaded nor stored: {type(error).__name__}")


def find_keeper(compile_data: Any) -> ProgramKeeper | None:
    """Returns the keeper of the programs of a compiled function; None if they are not stored.

    This is so without a store, for a function with two fusioncache transforms (each would count the programs), and for
    one with a cache option other than constant values.
    """
    from fusioncache.thunder_adapter.api import CACHE_OPTIONS

    if compile_data is None or compile_data.cache_option is not CACHE_OPTIONS.CONSTANT_VALUES:
        return None
    transforms = getattr(compile_data, "transforms", None) or ()
    ours = [each for each in transforms if hasattr(each, "program_keeper")]
    keeper = ours[0].program_keeper if len(ours) == 1 else None
    return keeper if keeper is not None and keeper.cache.store is not None else None
