"""The compile requests of a store's entries, as tasks that any process can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fusioncache.cache.executable import REGION, REQUEST
from fusioncache.ir import Declined, Instance, Scope
from fusioncache.ir.keys import GENERAL_LAYOUT, ORDER, read_key
from fusioncache.ir.template import Request, decode_region, decode_request
from fusioncache.store import Entry, Store
from fusioncache.store.entry import is_compiled
from fusioncache.template.key import call_ingredients
from fusioncache.template.text import write_graph

DAMAGED = "damaged"
GENERAL = "compiled for any sizes, when another one than the first is asked for"
OLDER = "stored without its compile request, by an older version"


@dataclass(frozen=True, slots=True)
class CompileTask:
    """A request to compile a region into the store.

    Attributes:
        request: what is asked for.
        instance: the region that it is asked for with, which has the bits.
        digest: of the key that the result must have; empty if any will do.
        device: the number of the GPU to compile on; None if that does not matter.
    """

    request: Request
    instance: Instance
    digest: str = ""
    device: int | None = None

    @property
    def weight(self) -> float:
        """How long it takes, compared with others: compilers take more than twice as long for twice as much."""
        graph = self.request.graph
        return float(len(graph.ops) * (len(graph.inputs) + len(graph.outputs)))


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


def survey(store: Store) -> Survey:
    """Finds the distinct requests of a store. Entries of several versions of one template have one request."""
    summaries = [summary for summary in store.entries() if is_compiled(summary.backend)]
    found: dict[tuple[str, str | None], tuple[str, float]] = {}
    refused: Counter[str] = Counter()
    for summary in summaries:
        entry = store.entry(summary.digest, summary.backend)
        objects = {part.name: part.object for part in entry.artifacts} if entry else {}
        if entry is None:
            refused[DAMAGED] += 1
        elif REQUEST in objects:
            # Where the order of operands shows, one request has an entry for each region that asked.
            region = objects.get(REGION) if ORDER in dict(entry.ingredients) else None
            id_ = f"{summary.digest}.{summary.backend}"
            found.setdefault((objects[REQUEST], region), (id_, entry.seconds))
        else:
            refused[GENERAL if GENERAL_LAYOUT in dict(entry.ingredients) else OLDER] += 1
    return Survey(len(summaries), dict(found.values()), refused)


def read_request(store: Store, id_: str) -> CompileTask:
    """Reads what an entry asks for.

    Raises:
        Declined: if it is gone, or damaged.
    """
    digest, _, backend = id_.partition(".")
    entry = store.entry(digest, backend)
    try:
        if entry is None or store.disk is None:
            raise ValueError("no entry")
        contents = {part.name: store.disk.content(part) for part in entry.artifacts if part.name in (REQUEST, REGION)}
        asked, instance = decode_request(contents[REQUEST]), decode_region(contents[REGION])
        if not _belongs(asked, instance, entry):
            raise ValueError("the request of another entry")
    except Exception as error:  # whatever it is, the store is as it was without this entry
        raise Declined(DAMAGED, Scope.REQUEST) from error
    return CompileTask(asked, instance)


def _belongs(asked: Request, instance: Instance, entry: Entry) -> bool:
    """Returns whether the entry's key was made for this request, and the region has its arguments and results."""
    graph = asked.graph
    texts = read_key(entry.text)
    wanted = {**write_graph(graph), **call_ingredients(graph, asked.layouts, instance)}
    named = all(texts.get(name) == text for name, text in wanted.items())
    counts = len(instance.inputs) == len(graph.inputs) and len(instance.outputs) == len(graph.outputs)
    return named and counts and asked.backend == entry.backend
