"""Replaces Thunder's list of cache entries with one that also finds programs stored by other processes.

Thunder iterates over its entries, last to first, and calls the prologue of each with the arguments. An entry whose
prologue raises does not fit. So a probe entry follows the others: its prologue notes the call and raises. If the store
has programs for the call, they come next, and Thunder calls their prologues like those of other entries. If none fits,
Thunder derives a program and appends its entry. At that moment the program is stored.

If a function has many programs, most are for other sizes. Then the probe comes first. Entries for the sizes of the
arguments follow, then all others, the most recently used first. The prologue decides, so any order is correct. The
number of entries that can be loaded or filled in again is bounded: otherwise a program for a length that occurs once
would stay forever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial, wraps
from itertools import chain
from typing import Any, NamedTuple
from weakref import ref

from fusioncache.accelerators.graphs.graph_capture import capture_entry, is_idle
from fusioncache.accelerators.programs.derivation import Derivation
from fusioncache.accelerators.programs.programs import MAX_KINDS, Call, Candidate, ProgramKeeper, find_keeper
from fusioncache.accelerators.sizes.lengths import Lengths
from fusioncache.accelerators.sizes.values import ArgumentSizes, find_sizes
from fusioncache.process import forks
from fusioncache.process.collector import without_collector
from fusioncache.thunder_adapter.api import _compile_data, get_compile_data


class _Row(NamedTuple):
    """A cache entry of a compiled function.

    Attributes:
        entry: Thunder's.
        sizes: of the arguments that it was made for.
        key: the digest of the key under which it can be loaded or filled in again; None if it cannot.
    """

    entry: Any
    sizes: tuple[Any, ...]
    key: str | None


class EntryIndex:
    """The cache entries of one compiled function, by the sizes of the calls that they were made for."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}  # by the entry's id, least recently used first

    def append(self, entry: Any, sizes: ArgumentSizes, key: str | None = None) -> None:
        """Adds an entry.

        Args:
            entry: Thunder's.
            sizes: of the arguments that it was made for.
            key: the digest of the key under which it can be loaded or filled in again; None if it cannot.
        """
        self._rows[id(entry)] = _Row(entry, tuple(sizes.items()), key)

    def evict_oldest(self, most: int, may_leave: Callable[[Any], bool]) -> _Row | None:
        """Removes the least recently used entry with a key if there are too many; returns its row, or None.

        Args:
            most: how many entries with a key may stay.
            may_leave: returns whether an entry may be removed.
        """
        rows = [row for row in self._rows.values() if row.key is not None]
        oldest = next((row for row in rows if may_leave(row.entry)), None) if len(rows) > most else None
        return None if oldest is None else self._rows.pop(id(oldest.entry))

    def order(self, entries: Sequence[Any], sizes: ArgumentSizes) -> Iterator[Any]:
        """Yields all entries, those with the same sizes first, and marks the one that was used as most recent.

        The entry used is the last one yielded if the iteration ends there.

        Args:
            entries: of the function.
            sizes: of the arguments of the call.
        """
        waiting = {id(entry): entry for entry in reversed([*entries])}  # a copy: another thread may drop an entry
        rows, wanted = [*reversed([*self._rows.items()])], tuple(sizes.items())
        known = (identity for identity, row in rows if row.sizes == wanted)
        taken = None
        try:
            for identity in chain(known, (identity for identity, _ in rows), [*waiting]):
                if identity in waiting:
                    taken = waiting.pop(identity)
                    yield taken
            taken = None
        finally:
            row = self._rows.pop(id(taken), None)
            if row is not None:
                self._rows[id(taken)] = row


FEW = 4
"""The largest number of entries tried in Thunder's order. With more, those for the same sizes come first."""
MOST_ENTRIES = 256
"""How many entries are held that can be loaded or filled in again, which takes a few milliseconds."""


def _go_on(search: Iterator[Any], context: Context) -> Any:
    """Returns the next entry of a search, which runs in a ``contextvars`` context, or None."""
    # The decoded program stays alive, and a collection that finds this may take as long as everything else.
    with without_collector():
        return context.run(next, search, None)


def _make_probe(calls: list[tuple[Call, ArgumentSizes, Context]]) -> Any:
    """Returns a probe entry: its prologue notes the call, its sizes and the context of Thunder's calls, and raises."""
    from fusioncache.thunder_adapter.accelerator_api import CacheEntry

    def look(*args: Any, **kwargs: Any) -> Any:
        calls.append((Call(get_compile_data(), args, kwargs), find_sizes(args, kwargs), copy_context()))
        raise LookupError("Thunder is to go on to the next entry")

    return CacheEntry(look, [], None, [], None, [], None, [], False)


class ProgramList(list[Any]):
    """The list of Thunder's cache entries for one compiled function, extended by the programs in the store.

    Attributes:
        derived: digests of keys with a program that was derived or filled in here and is held: not searched for again.
        stored_count: how many of the derived programs were stored.
        lengths: derives and fills in the function's programs at further lengths.
        compile_data: a weak reference to Thunder's ``CompileData`` of the function; None before its first call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.derived: set[str] = set()
        self.stored_count = 0
        self.lengths = Lengths()
        self.compile_data: ref[Any] | None = None
        self._derivations: dict[int, Derivation] = {}
        self._index = EntryIndex()
        self._lock = forks.lock()

    def __reversed__(self) -> Iterator[Any]:
        """Yields Thunder's entries, then those of stored or filled-in programs for the arguments."""
        self.expect(None)  # the last derivation may have raised
        calls: list[tuple[Call, ArgumentSizes, Context]] = []
        probe = _make_probe(calls)
        if len(self) > FEW:
            yield probe
        yield from self._index.order(self, calls[0][1]) if calls else super().__reversed__()
        if not calls:
            yield probe
        for call, _, context in calls:
            search = self._search(call)
            while (entry := _go_on(search, context)) is not None:
                yield entry

    def list_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Returns the entries in the order in which they are tried for these arguments."""
        self.expect(None)  # the last derivation may have raised
        return self._index.order(self, find_sizes(args, kwargs)) if len(self) > FEW else super().__reversed__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes a copy a plain list, as Thunder's is: it must not search for programs."""
        return list, (list(self),)

    def append(self, entry: Any) -> None:
        """Adds an entry that Thunder has just derived, and stores its program.

        Raises:
            VerificationError: if the program differs from the stored one.
        """
        derivation = self._derivations.pop(threading.get_ident(), None)
        is_kept = False
        if derivation is not None:
            self.derived.add(derivation.key.digest)
            is_kept = derivation.finish(entry)
            self.stored_count += is_kept
            with without_collector():
                self.lengths.learn(derivation, entry)
        self.add(self.capture(entry), derivation, is_reloadable=is_kept)

    def capture(self, entry: Any) -> Any:
        """Returns an entry whose forward and backward are captured in CUDA graphs, if that is enabled."""
        return capture_entry(entry, self.compile_data() if self.compile_data else None)

    def add(self, entry: Any, derivation: Derivation | None, *, is_reloadable: bool) -> None:
        """Adds an entry.

        Args:
            entry: Thunder's.
            derivation: of its program; None if it has none.
            is_reloadable: whether it can be loaded or filled in again.
        """
        sizes = {} if derivation is None else find_sizes(derivation.call.args, derivation.call.kwargs)
        key = derivation.key.digest if derivation and is_reloadable else None
        with self._lock:
            self._index.append(entry, sizes, key)
            super().append(entry)
            self._make_room()

    def _make_room(self) -> None:
        """Drops least recently used entries while too many can be loaded or filled in again.

        Calls in progress are safe: the call stack and autograd nodes hold the functions that they need.
        """
        while surplus := self._index.evict_oldest(MOST_ENTRIES, is_idle):
            self[:] = [each for each in self if each is not surplus.entry]
            assert surplus.key is not None
            self.derived.discard(surplus.key)

    def expect(self, derivation: Derivation | None) -> None:
        """Sets the derivation that this thread runs next; None if its program is not to be stored."""
        self._derivations.pop(threading.get_ident(), None)
        if derivation is not None:
            derivation.begin()
            self._derivations[threading.get_ident()] = derivation

    def expected(self) -> Derivation | None:
        """Returns the derivation that this thread runs, if its program is to be stored."""
        return self._derivations.get(threading.get_ident())

    def _search(self, call: Call) -> Iterator[Any]:
        """Yields an entry for each program that may fit a call. If none fits, Thunder derives one. Never raises."""
        started, keeper = time.perf_counter(), None
        try:
            self.expect(None)
            self.compile_data = None if call.compile_data is None else ref(call.compile_data)
            keeper = find_keeper(call.compile_data)
            if keeper is not None:
                yield from self._find(keeper, call, started)
        except Exception as error:
            self.expect(None)
            if keeper is not None:
                keeper.report_failure(error)

    def _find(self, keeper: ProgramKeeper, call: Call, started: float) -> Iterator[Any]:
        key, definitions = keeper.describe(call)
        if key.digest in self.derived:
            return
        derivation = Derivation(keeper, call, key, definitions)
        for candidate in keeper.candidates(key):
            if not derivation.has_equal_reads(candidate):
                continue
            if keeper.verifies:
                derivation.expected = candidate
                break
            yield from self._try(candidate, derivation, partial(keeper.note_loaded, candidate, call, started))
        filled = None if derivation.expected else self.lengths.fill(derivation)
        if filled is not None:
            yield from self._try(filled, derivation, partial(self._note_filled, filled, derivation))
        self._derive(derivation)

    def _try(self, candidate: Candidate, derivation: Derivation, note: Callable[[], None]) -> Iterator[Any]:
        """Yields the entry of a program if it can be built. If Thunder requests the next entry, its guards failed."""
        entry = derivation.keeper.build(candidate, derivation.call)
        if entry is not None:
            yield self._watch(entry, note, derivation)
            derivation.keeper.refuse("its guards fail for these inputs")

    def _derive(self, derivation: Derivation) -> None:
        """Explains why no program fits, if that is enabled, and expects Thunder to derive one now."""
        derivation.explain()
        if self.stored_count >= MAX_KINDS:
            derivation.keeper.refuse(f"more than {MAX_KINDS} kinds of input in one process")
            derivation.is_kept = False
        self.expect(derivation)

    def _note_filled(self, candidate: Candidate, derivation: Derivation) -> None:
        self.derived.add(derivation.key.digest)
        derivation.keeper.note_filled(candidate, derivation.call)

    def _watch(self, entry: Any, note: Callable[[], None], derivation: Derivation) -> Any:
        """Returns an entry that is added to the list when its prologue has returned without raising.

        Thunder keeps a reference to the last prologue, so this one then drops its references to the call.
        """
        entry = self.capture(entry)

        def add() -> None:
            self.add(entry, derivation, is_reloadable=True)
            note()

        waiting = [add]

        def prologue(*args: Any, **kwargs: Any) -> Any:
            results = entry.prologue_fn(*args, **kwargs)
            while waiting:
                waiting.pop()()
            return results

        return entry._replace(prologue_fn=prologue)


def order_entries(entries: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Returns the entries of a compiled function in the order in which they are tried for these arguments."""
    return entries.list_for(args, kwargs) if isinstance(entries, ProgramList) else reversed(entries)


def install_program_list(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``CompileStats.__init__`` so that each compiled function gets a ``ProgramList``."""

    @wraps(original)
    def __init__(self: Any) -> None:
        original(self)
        self.interpreter_cache = ProgramList()

    return __init__


def record_reads(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``thunder_general_jit`` to record the reads of a function whose program is to be stored."""

    @wraps(original)
    def thunder_general_jit(fn: Any, args: Any, kwargs: Any, /, **options: Any) -> Any:
        programs = _find_list()
        derivation = programs.expected() if programs is not None else None
        if programs is None or derivation is None or derivation.call.compile_data.fn is not fn:
            return original(fn, args, kwargs, **options)
        try:
            return programs.lengths.derive(derivation, partial(original, fn, **options))
        except BaseException:
            programs.expect(None)
            raise

    return thunder_general_jit


def _find_list() -> ProgramList | None:
    """Returns the ``ProgramList`` of the function that Thunder is tracing; None if it has another list or none."""
    entries = getattr(_compile_data.get()[1], "interpreter_cache", None)
    return entries if isinstance(entries, ProgramList) else None
