"""The cache: known templates, and their compiled executables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fusioncache.cache.executable import Executable
from fusioncache.cache.generals import GeneralRegions
from fusioncache.cache.peers import Helpers, Ranks
from fusioncache.ir import Graph, Key, Template
from fusioncache.observe.record.database import RecordWriter
from fusioncache.observe.record.events import open_log
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.stats import Stats, TemplateStats
from fusioncache.process import forks
from fusioncache.process.forks import LruMap
from fusioncache.process.settings import STORE
from fusioncache.store import Store
from fusioncache.template.key import graph_key, template_name

if TYPE_CHECKING:
    from fusioncache.store.packs import PackResult, UnpackResult


class Cache:
    """Compiled templates. All models of a process that use the cache share them; with a store, later processes do, too.

    Args:
        capacity: how many templates and how many executables are stored in memory. The least recently used is removed
            first; compiled models keep those that they use.
        record: whether to write a record of the run for the command line, in ``FUSIONCACHE_DIR`` or the platform's
            cache directory.
        store: whether to store executables for later processes in the same directory; or another directory for them.
            None reads the environment: ``FUSIONCACHE_STORE=0`` turns the store off.

    Raises:
        TypeError: if ``store`` has another type.
        ValueError: if ``capacity`` is less than 1, ``FUSIONCACHE_STORE`` is neither 0 nor 1, or ``FUSIONCACHE_LOG`` is
            not a place to write to.

    Attributes:
        ledger: counts for all users of this cache.
        ranks: the other processes of a distributed job.
        helpers: the processes that compile for this one; None if there are none.
        batch: compiles in this process instead, where that pays; None if not.
        generals: regions that differ only in sizes, with their general functions and rejections.
    """

    def __init__(self, *, capacity: int = 4096, record: bool = True, store: bool | str | Path | None = None):
        self._templates: LruMap[Key, Template] = LruMap(capacity)
        self._executables: LruMap[Key, Executable] = LruMap(capacity)
        self.ledger = Ledger(log=open_log())
        self._recorder = RecordWriter(self.ledger) if record else None
        self._store_option = _read_store_option(store)
        self._store: Store | None = None
        self.ranks = Ranks()
        self.helpers: Helpers | None = None
        self.batch: Helpers | None = None
        self.generals = GeneralRegions(capacity)
        self._lock = forks.lock()

    def template(self, graph: Graph, environment: Mapping[str, str]) -> tuple[Template, bool]:
        """Returns the template with this canonical graph, and whether it was known."""
        key = graph_key(graph, environment)
        return self._templates.get_or_make(key, lambda: Template(graph, key, template_name(graph, key)))

    def executable(self, graph: Graph, environment: Mapping[str, str], make: Callable[[], Executable]) -> Executable:
        """Returns the executable for a graph without parameters, and makes it at the first call."""
        return self._executables.get_or_make(graph_key(graph, environment), make)[0]

    @property
    def store(self) -> Store | None:
        """The store, opened at its first use; None if the option ``store`` is off."""
        with self._lock:
            if self._store is None and self._store_option is not False:
                self._store = Store.open(None if self._store_option is True else self._store_option)
                self._store.watch(self.ledger.count)
            return self._store

    def stats(self) -> Stats:
        """Returns the counts of all users of this cache so far."""
        return self.ledger.stats()

    def templates(self) -> tuple[TemplateStats, ...]:
        """Returns the templates so far, each with its counts."""
        return self.ledger.templates()

    def save(
        self, path: str | Path, *, model: str = "", device: str = "", driver: str = "", version: str = ""
    ) -> PackResult:
        """Writes the store into one file, which ``load`` and 'fusioncache unpack' read on another machine.

        The key of this user (``fusioncache keys new``) or of ``FUSIONCACHE_SIGNING_KEY`` signs it. Without a key it
        stays unsigned, and other machines read it only with ``FUSIONCACHE_TRUST=unsigned``.

        Args:
            path: of the file, which is replaced once the new one is complete.
            model: the name of a model, to leave out other models' entries.
            device: a substring of the name of a GPU or processor, to leave out entries for others.
            driver: a substring of the version of NVIDIA's driver.
            version: a substring of the versions, such as ``torch 2.10``.

        Raises:
            StoreError: if there is no store, nothing to write, it cannot be signed here, or the file cannot be
                written.
            OSError: if the store cannot be read.
        """
        from fusioncache.cache import packing
        from fusioncache.store.signing import read_own_key

        only = {"device": device, "driver": driver, "version": version}
        return packing.save_pack(self.store, Path(path), model=model, only=only, key=read_own_key())

    def load(self, path: str | Path, *, all_machines: bool = False, dry_run: bool = False) -> UnpackResult:
        """Copies a pack's entries for this machine into the store. Each entry is verified before it is used.

        Args:
            path: of the file.
            all_machines: whether to copy entries for other machines, too, as when an image is built without a GPU.
            dry_run: whether to only report what would be copied.

        Raises:
            StoreError: if there is no store, or if the file is unreadable, not a pack, or not signed by a trusted key.
            OSError: if the store cannot be written.
        """
        from fusioncache.cache import packing
        from fusioncache.store.packs import open_pack
        from fusioncache.store.signing import require_trust

        trust = require_trust()
        pack = open_pack(Path(path), trust)
        return packing.load_pack(self.store, pack, trust, all_machines=all_machines, dry_run=dry_run)

    def write_record(self) -> None:
        """Updates the record on disk. Never raises: a record that cannot be written causes one warning."""
        if self._recorder:
            self._recorder.save()

    def write_record_later(self) -> None:
        """Does the same as ``write_record`` half a second later in the background. Never waits or raises."""
        if self._recorder:
            self._recorder.append()

    def clear(self) -> None:
        """Removes all templates and executables. Compiled models keep working; counts stay."""
        self._templates.clear()
        self._executables.clear()
        self.generals.clear()


def _read_store_option(store: bool | str | Path | None) -> bool | str | Path:
    """Returns whether executables are stored, or the directory to store them in."""
    if store is not None:
        if not isinstance(store, (bool, str, Path)):
            raise TypeError(f"store must be True, False, a directory or None, got {store!r}")
        return store
    return STORE.get_text() != "0"


default_caches: LruMap[str, Cache] = LruMap(1)
"""The cache of this process, once it is made."""


def default_cache() -> Cache:
    """Returns the process's cache. The first call makes it, also with several threads."""
    return default_caches.get_or_make("default", Cache)[0]
