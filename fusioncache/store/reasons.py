"""Why a key was not in a store: what keeps it apart from the nearest one that was."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterable

from fusioncache.explain.parts import GRAPH, unframed
from fusioncache.ir import Key
from fusioncache.store.entry import DIGEST

logger = logging.getLogger("fusioncache")

NEW = "new"
"""The reason where nothing in the store computes the same."""

UNKNOWN = "unknown"
"""The reason where it could not be found out."""

_MOST_COMPARED = 16

_SAME_GRAPH = """
SELECT templates.text FROM templates JOIN entries ON entries.digest = templates.digest
WHERE templates.graph = ? AND templates.digest != ? AND entries.backend = ? AND entries.created <= ?
ORDER BY entries.created DESC, templates.digest LIMIT ?
"""


def graph_digest(ingredients: Iterable[tuple[str, str]]) -> str:
    """A digest of what a key computes, whatever its environment, from the ingredients' digests; empty if it has none.

    Args:
        ingredients: name and digest of each.
    """
    parts = [pair for pair in ingredients if pair[0] in GRAPH]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if parts else ""


def reason(database: sqlite3.Connection, key: Key, backend: str, time: float) -> str:
    """The ingredient that differs from what was stored before for the same graph, with both values; or ``NEW``.

    Args:
        database: the index.
        key: that was missed.
        backend: that would have made the artifacts.
        time: of the miss, in seconds since the epoch.
    """
    graph = graph_digest((part.name, part.digest) for part in key.ingredients)
    if not (graph and DIGEST.fullmatch(key.digest)):
        return NEW
    found = database.execute(_SAME_GRAPH, (graph, key.digest, backend, time, _MOST_COMPARED)).fetchall()
    if not found:
        return NEW
    try:
        return explain_difference(key, [text for (text,) in found])
    except Exception as error:  # whatever it is, an explanation is not worth an index
        logger.info("a miss is not explained", exc_info=error)
        return UNKNOWN


def explain_difference(key: Key, texts: list[str]) -> str:
    """Returns what keeps a key apart from the nearest of other keys, given by their texts."""
    # Imported here: a store that misses nothing needs neither.
    from fusioncache.explain.difference import compare
    from fusioncache.explain.nearest import nearest

    own = {part.name: part.text for part in key.ingredients}
    others = [unframed(text) for text in texts]
    place = nearest(own, others)
    assert place is not None
    # A lone surrogate has no bytes.
    return compare(own, others[place]).reason().encode(errors="backslashreplace").decode()
