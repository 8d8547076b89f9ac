"""The remote behind a store: one process of a machine sends a request, and all others use its result.

A process requests the index in the background when it starts. An entry that the store lacks is looked up in the index,
and only a pack that contains it is fetched. So a model in the remote costs a machine two requests for any number of
processes, and an entry that is not in the index costs none.

A process waits for the remote for one second in total. Later results are still put into the store.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress

from fusioncache.process import forks
from fusioncache.process.files import make_folders, remove
from fusioncache.store.counts import StoreCounts
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import ID
from fusioncache.store.files import Refusal, StoreError, name_cause, publish, read_private
from fusioncache.store.index import LARGEST_INDEX, Index, ListedPack, accept_index, shorten_entry_id
from fusioncache.store.locks import hold
from fusioncache.store.remote import FETCHED, Remote
from fusioncache.store.signing import Trust, read_trust
from fusioncache.store.transport import run_in_thread

WAIT_SECONDS = 1.0
"""How long a process waits for its remote in total."""
FRESH_SECONDS = 300.0
"""How long a fetched index serves all processes of the machine."""
FAILED_SECONDS = 60.0
"""How long a machine sends no requests to a remote that failed."""
SPREAD_SECONDS = 0.1
"""Machines that start together send requests at random moments within this time."""
_LOCK_SECONDS = 60.0
_PACK = "pack-"
"""Prefix of the names of notes on fetched packs."""


class ReadThrough:
    """Fetches packs from a remote into a store in background threads.

    Args:
        url: of the remote.
        disk: receives the entries.
        counts: counts fetched entries and failures.
    """

    def __init__(self, url: str, disk: DiskStore, counts: StoreCounts):
        self._remote = Remote(url)
        self._disk = disk
        self._counts = counts
        self._folder = self._remote.find_notes(disk)
        self._waited = 0.0
        self._failed = False
        self._lock = forks.lock()
        self._packs: dict[str, Future[bool]] = {}
        self._index: Future[Mapping[str, tuple[ListedPack, ...]]] = run_in_thread(self._fetch_index)
        forks.register(self)

    def after_fork(self) -> None:
        """Requests the index again in a forked child, because its parent's threads do not run there."""
        self._packs.clear()
        if not self._index.done():
            self._index = run_in_thread(self._fetch_index)

    def fetch_entry(self, id_: str) -> bool:
        """Fetches an entry that the store lacks. Returns True if the store may contain it now. Never raises.

        Args:
            id_: of the entry.
        """
        if not ID.fullmatch(id_):
            return False
        known = self._wait(self._index) or {}
        for pack in known.get(shorten_entry_id(id_), ()):
            if self._wait(self._start(pack, id_)):
                return True
            if self._waited >= WAIT_SECONDS:
                break  # the first pack may still arrive, for later processes
        return False

    def _start(self, pack: ListedPack, id_: str) -> Future[bool]:
        with self._lock:
            if pack.digest not in self._packs:
                self._packs[pack.digest] = run_in_thread(lambda: self._fetch_pack(pack, id_))
            return self._packs[pack.digest]

    def _wait[T](self, future: Future[T]) -> T | None:
        """Returns the result of a request; None if it fails or does not arrive in the remaining time."""
        start, left = time.monotonic(), WAIT_SECONDS - self._waited
        try:
            if not wait((future,), max(left, 0.0)).done:
                if not self._index.done():
                    self._note("late")  # later processes then need not wait for it; if it arrives, they use it
                self._fail(
                    f"{self._remote} takes more than {WAIT_SECONDS:.0f} s. What still comes is for later processes"
                )
                return None
            return future.result()
        except Refusal as refusal:
            self._count_refusal(refusal)
        except _RecentFailure:
            self._failed = True  # the process that noticed it has warned
        except StoreError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"what {self._remote} has cannot be stored here ({name_cause(error)})")
        except Exception as error:  # its message may contain secrets
            self._fail(f"{self._remote} cannot be used ({type(error).__name__})")
        finally:
            self._waited += time.monotonic() - start
        return None

    def _count_refusal(self, refusal: Refusal) -> None:
        self._counts.count_refused_pull(refusal.reason, f"what {self._remote} has is not used: {refusal}")

    def _fail(self, message: str) -> None:
        if not self._failed:
            self._failed = True
            self._counts.count_refused_pull("it failed", f"{message}. Compiling goes on here")

    # On other threads

    def _fetch_index(self) -> Mapping[str, tuple[ListedPack, ...]]:
        """Returns the packs that contain each entry, by its shortened name."""
        trust = read_trust()
        known = self._read_index(trust)
        if known is None:
            self._require_not_failed()
            if self._is_fresh("late", FAILED_SECONDS):
                raise _RecentFailure
            with self._lock_remote():
                known = self._read_index(trust)  # another process may have fetched it meanwhile
                if known is None:
                    self._require_not_failed()
                    known = self._ask_for_index(trust)
        return known.group_by_entry()

    def _read_index(self, trust: Trust) -> Index | None:
        """Returns the index if a process of this machine fetched it recently; None if none did.

        Raises:
            Refusal: if it may not be used. Then no request is sent either.
        """
        if self._is_fresh("empty", FRESH_SECONDS):
            return Index(0, ())
        if self._is_fresh(FETCHED, FRESH_SECONDS):
            with suppress(OSError):
                content = read_private(self._folder / FETCHED, LARGEST_INDEX)
                return None if content is None else accept_index(content, trust, self._folder)
        return None

    def _ask_for_index(self, trust: Trust) -> Index:
        time.sleep(random.uniform(0.0, SPREAD_SECONDS))
        with self._noting_failure():
            index = self._remote.fetch_index(trust, self._disk)
        self._forget_packs()
        if index is None:
            self._note("empty")
            return Index(0, ())
        remove(self._folder / "empty")
        return index

    def _fetch_pack(self, pack: ListedPack, id_: str) -> bool:
        trust, mark = read_trust(), f"{_PACK}{pack.digest[:16]}"
        with self._lock_remote():
            if self._disk.is_usable(id_, trust):
                return True  # another process was faster
            if self._is_fresh(mark, FRESH_SECONDS):
                return False  # another process fetched the pack, and could not use the entry
            self._require_not_failed()
            with self._noting_failure():
                try:
                    brought = self._remote.import_pack(pack, self._disk, trust)
                except Refusal:
                    self._note(mark)  # other processes would refuse it as well
                    raise
            self._note(mark)
        signer = trust.name(brought.signer) if brought.signer else "unsigned"
        self._counts.observer("pulled", brought.entries, of=signer)
        for reason in brought.refused:
            self._count_refusal(Refusal(reason))
        return True

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Notes a failure of the remote, so that other processes send no requests. Removes the note after a success."""
        try:
            yield
        except StoreError:
            self._note("failed")
            raise
        remove(self._folder / "failed")

    @contextmanager
    def _lock_remote(self) -> Iterator[None]:
        """Admits one process of the machine at a time; several if locks are not supported."""
        make_folders(self._folder)
        with hold(self._folder / "lock", _LOCK_SECONDS):
            yield

    def _require_not_failed(self) -> None:
        if self._is_fresh("failed", FAILED_SECONDS):
            raise _RecentFailure

    def _is_fresh(self, name: str, seconds: float) -> bool:
        with suppress(OSError):
            # A file from the future was made before the clock was set back.
            return 0.0 <= time.time() - os.stat(self._folder / name).st_mtime < seconds
        return False

    def _forget_packs(self) -> None:
        """Removes the expired notes on packs."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name.startswith(_PACK) and not self._is_fresh(name, FRESH_SECONDS):
                    remove(self._folder / name)

    def _note(self, name: str) -> None:
        with suppress(OSError):  # then the next process sends a request
            make_folders(self._folder)
            publish(self._folder / name, b"")


class _RecentFailure(Exception):
    """Another process of this machine recently failed to use the remote."""
