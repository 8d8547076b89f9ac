"""Why a key was not in a store: what keeps it apart from the nearest one that was."""

from __future__ import annotations

import logging
import sqlite3

from fusioncache.ir import Key
from fusioncache.ir.ingredients import graph_digest
from fusioncache.ir.key_text import read_key
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
    # Imported here: a store that misses nothing does not need it.
    from fusioncache.explain.miss import explain_miss

    difference = explain_miss(key.texts, [read_key(text) for text in texts]).difference
    # A lone surrogate has no bytes.
    return difference.reason().encode(errors="backslashreplace").decode()
