"""The requests that a store has seen, each with the region that made it first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fusioncache.cache.executable import REGION, REQUEST
from fusioncache.ir import Declined, Instance, Scope
from fusioncache.ir.ingredients import GENERAL_LAYOUT, ORDER
from fusioncache.ir.key_text import read_key
from fusioncache.ir.request import Request, decode_region, decode_request
from fusioncache.store import Entry, Store
from fusioncache.store.entry import is_compiled
from fusioncache.template.key import call_ingredients
from fusioncache.template.text import write_graph

DAMAGED = "damaged"
GENERAL = "compiled for any sizes, when another one than the first is asked for"
OLDER = "stored without its compile request, by an older version"


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request that can be made again.

    Attributes:
        request: what was asked for.
        instance: the region that it was asked for with, which has the bits.
    """

    request: Request
    instance: Instance


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of a store, as far as they can be compiled again.

    Attributes:
        entries: how many there are, but for programs, which only tracing makes.
        seconds: by the id of one entry for each distinct request, the newest: how long it took to compile.
        refused: how many other entries cannot be compiled again, by reason.
    """

    entries: int
    seconds: Mapping[str, float]
    refused: Mapping[str, int]

    @property
    def ids(self) -> tuple[str, ...]:
        """Of these entries."""
        return tuple(self.seconds)


def survey(store: Store) -> Survey:
    """Finds the distinct requests of a store. Entries of several versions of one template have one request."""
    summaries = [summary for summary in store.entries() if is_compiled(summary.backend)]
    found: dict[tuple[str, str | None], tuple[str, float]] = {}
    refused: Counter[str] = Counter()
    for summary in summaries:
        entry = store.entry(summary.digest, summary.backend)
        objects = {part.name: part.object for part in entry.artifacts} if entry else {}
        if REQUEST in objects:
            # Where the order of operands shows, one request has an entry for each region that asked.
            region = objects.get(REGION) if entry and ORDER in dict(entry.ingredients) else None
            id_ = f"{summary.digest}.{summary.backend}"
            found.setdefault((objects[REQUEST], region), (id_, entry.seconds if entry else 0.0))
        else:
            refused[_why_not_asked(entry)] += 1
    return Survey(len(summaries), dict(found.values()), refused)


def _why_not_asked(entry: Entry | None) -> str:
    """Returns why an entry has no request."""
    if entry is None:
        return DAMAGED
    return GENERAL if GENERAL_LAYOUT in dict(entry.ingredients) else OLDER


def read_request(store: Store, id_: str) -> StoredRequest:
    """Reads what an entry asks for.

    Raises:
        Declined: if it is gone, or damaged.
    """
    digest, _, backend = id_.partition(".")
    entry = store.entry(digest, backend)
    if entry is None:
        raise Declined(DAMAGED, Scope.REQUEST)
    try:
        asked = decode_request(_read_artifact(store, entry, REQUEST))
        instance = decode_region(_read_artifact(store, entry, REGION))
    except Exception as error:  # whatever it is, the store is as it was without this entry
        raise Declined(DAMAGED, Scope.REQUEST) from error
    if not _belongs(asked, instance, entry):
        raise Declined(DAMAGED, Scope.REQUEST)
    return StoredRequest(asked, instance)


def _read_artifact(store: Store, entry: Entry, name: str) -> bytes:
    (artifact,) = [artifact for artifact in entry.artifacts if artifact.name == name]
    if store.disk is None:
        raise ValueError("a store in memory")
    return store.disk.content(artifact)


def _belongs(asked: Request, instance: Instance, entry: Entry) -> bool:
    """Tells whether the entry's key was made for this request, and the region has its arguments and results."""
    graph = asked.graph
    try:
        texts = read_key(entry.text)
    except ValueError:
        return False
    wanted = {**write_graph(graph), **call_ingredients(graph, asked.layouts, instance)}
    named = all(texts.get(name) == text for name, text in wanted.items())
    counts = len(instance.inputs) == len(graph.inputs) and len(instance.outputs) == len(graph.outputs)
    return named and counts and asked.backend == entry.backend
