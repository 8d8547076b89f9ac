"""The cache: the templates that are known, and the executables that were compiled for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
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

_making = forks.lock()


class Cache:
    """Compiled templates, shared by all models of a process that are given it, and with later processes by a store.

    Args:
        capacity: how many templates are kept, and how many executables. Least recently used leaves first; what a
            compiled model still uses lives on with it.
        record: whether to leave a record of the run for the command line, in ``FUSIONCACHE_DIR`` or the platform's
            cache directory.
        store: whether to keep what was compiled for later processes, in the same directory; or the directory to keep
            it in. None asks the environment: ``FUSIONCACHE_STORE=0`` says no.

    Raises:
        TypeError: if ``store`` is none of these.
        ValueError: if ``capacity`` is less than 1, or the environment says something else than 0 or 1 of the store, or
            something in ``FUSIONCACHE_LOG`` that is no place to write to.

    Attributes:
        ledger: counts for all users of this cache.
        ranks: the other processes of a distributed job.
        helpers: the processes that compile for this one, if there are any.
        batch: compiles for this process itself where there are no such processes, if that pays.
        generals: what was compiled for regions that differ only in sizes.
        rejections: why a compiler rejected regions, by their skeletons and environments.
    """

    def __init__(self, *, capacity: int = 4096, record: bool = True, store: bool | str | Path | None = None):
        self._templates: LruMap[Key, Template] = LruMap(capacity)
        self._keys: LruMap[tuple[Graph, tuple[tuple[str, str], ...]], Key] = LruMap(capacity)
        self._executables: LruMap[Key, Executable] = LruMap(capacity)
        self.ledger = Ledger(log=open_log())
        self._recorder = RecordWriter(self.ledger) if record else None
        self._store_option = _read_store_option(store)
        self._store: Store | None = None
        self.ranks = Ranks()
        self.helpers: Helpers | None = None
        self.batch: Helpers | None = None
        self.generals = GeneralRegions(capacity)
        self.rejections: LruMap[Hashable, str] = LruMap(capacity)
        self._lock = forks.lock()

    def template(self, graph: Graph, environment: Mapping[str, str]) -> tuple[Template, bool]:
        """Returns the template with this canonical graph, and whether it was known."""
        # A program that is filled in asks when it is written and when it is built: its text is written once.
        written = graph, tuple(sorted(environment.items()))
        key = self._keys.get_or_make(written, lambda: graph_key(graph, environment))[0]
        return self._templates.get_or_make(key, lambda: Template(graph, key, template_name(graph, key)))

    def executable(self, graph: Graph, environment: Mapping[str, str], make: Callable[[], Executable]) -> Executable:
        """Returns the executable for a graph without parameters, which is made if it is not there."""
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
        """Returns what all users of this cache have done so far."""
        return self.ledger.stats()

    def templates(self) -> tuple[TemplateStats, ...]:
        """Returns the templates seen so far, each with its counts."""
        return self.ledger.templates()

    def save(
        self, path: str | Path, *, model: str = "", device: str = "", driver: str = "", version: str = ""
    ) -> PackResult:
        """Writes what the store has into one file, which ``load`` and 'fusioncache unpack' read on another machine.

        The key of this user (``fusioncache keys new``) or of ``FUSIONCACHE_SIGNING_KEY`` signs it. Without a key it
        stays unsigned, and other machines read it only with ``FUSIONCACHE_TRUST=unsigned``.

        Args:
            path: of the file, which is replaced when the new one is whole.
            model: the name of a model, to leave out what is for others.
            device: a part of the name of a GPU or processor, to leave out what was compiled for others.
            driver: the same of the number of NVIDIA's driver.
            version: the same of the versions, such as ``torch 2.10``.

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
        """Brings into the store what a pack has for this machine. Each entry is verified before it is used.

        Args:
            path: of the file.
            all_machines: whether to bring what is for others, too, as where an image is built without a GPU.
            dry_run: whether to bring nothing and say what would be brought.

        Raises:
            StoreError: if there is no store, or the file cannot be read, is no pack, or no key that is trusted signed
                it.
            OSError: if the store cannot be written.
        """
        from fusioncache.cache import packing
        from fusioncache.store.packs import open_pack
        from fusioncache.store.signing import require_trust

        trust = require_trust()
        pack = open_pack(Path(path), trust)
        return packing.load_pack(self.store, pack, trust, all_machines=all_machines, dry_run=dry_run)

    def write_record(self) -> None:
        """Brings the record on disk up to date. Never raises: a record that cannot be written costs one warning."""
        if self._recorder:
            self._recorder.save()

    def write_record_later(self) -> None:
        """Does as ``write_record`` half a second later, beside the steps. Never waits or raises."""
        if self._recorder:
            self._recorder.append()

    def clear(self) -> None:
        """Forgets all templates and executables. Compiled models keep working; counts stay."""
        self._templates.clear()
        self._keys.clear()
        self._executables.clear()
        self.generals.clear()
        self.rejections.clear()


def _read_store_option(store: bool | str | Path | None) -> bool | str | Path:
    """Returns whether executables are persisted, or the directory that they go to."""
    if store is not None:
        if not isinstance(store, (bool, str, Path)):
            raise TypeError(f"store must be True, False, a directory or None, got {store!r}")
        return store
    return STORE.get_text() != "0"


def default_cache() -> Cache:
    """Returns the process's cache. The first to ask makes it, also if several threads ask at once."""
    with _making:
        return make_default_cache()


@cache
def make_default_cache() -> Cache:
    """Returns the same cache each time it is called."""
    return Cache()
