"""How large and how old the record may get: the oldest runs go, as the entries of the store do."""

from __future__ import annotations

import sqlite3
import time

from fusioncache.observe.record.schema import IN_PAST, OF_RUNS

MAX_BYTES = 64 << 20
"""The most that the file may have. The newest run stays, and gets no more details when it has that much itself."""
MAX_AGE = 90 * 86400.0
"""Seconds after which a run that was not saved since is forgotten."""
FILL = 0.8
"""The part of what there may be to which runs are forgotten, so that it is not done with each save."""
MOST_RUNS = 100
MOST_PAST_RUNS = 10_000
"""How many runs are counted of which nothing else is left."""


def make_room(
    database: sqlite3.Connection,
    run: int | None = None,
    *,
    max_bytes: int | None = None,
    max_age: float | None = None,
) -> int:
    """Deletes old runs, and what only they used, where the file is too large, or they are too many or too old.

    By the last save, not the start: a run that is still going on is not old. The newest one stays.

    Args:
        database: in a transaction.
        run: the number of the newest run, if it is known: clocks may have been set back.
        max_bytes: the most that the file may have; by default ``MAX_BYTES``.
        max_age: the seconds; by default ``MAX_AGE``.

    Returns:
        How many runs were deleted.
    """
    limit = MAX_BYTES if max_bytes is None else max_bytes
    oldest = time.time() - (MAX_AGE if max_age is None else max_age)
    newest_first = "SELECT number, updated FROM runs ORDER BY number IS ? DESC, updated DESC, number DESC"
    runs = database.execute(newest_first, (run,)).fetchall()
    old = [number for place, (number, updated) in enumerate(runs) if place and (place >= MOST_RUNS or updated < oldest)]
    _forget(database, old)
    left = [number for number, _ in runs[1:] if number not in set(old)]
    if measure(database) > limit:
        while left and measure(database) > limit * FILL:
            old.append(left.pop())
            _forget(database, old[-1:])
    return len(old)


def measure(database: sqlite3.Connection) -> int:
    """Returns the bytes that the file has when the transaction has ended."""
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def has_room(database: sqlite3.Connection) -> bool:
    """Tells whether more may be written into the file."""
    return measure(database) <= MAX_BYTES


def _forget(database: sqlite3.Connection, runs: list[int]) -> None:
    if not runs:
        return
    for number in runs:
        database.execute(f"INSERT OR REPLACE INTO past SELECT {IN_PAST} FROM runs WHERE number = ?", (number,))
        for table in OF_RUNS:
            database.execute(f"DELETE FROM {table} WHERE run = ?", (number,))
        database.execute("DELETE FROM runs WHERE number = ?", (number,))
    newest = "SELECT id FROM past ORDER BY started DESC LIMIT ?"
    database.execute(f"DELETE FROM past WHERE id NOT IN ({newest})", (MOST_PAST_RUNS,))
    database.execute("DELETE FROM templates WHERE id NOT IN (SELECT template FROM uses)")
    used = "SELECT outline FROM traces UNION SELECT outline FROM templates"
    database.execute(f"DELETE FROM outlines WHERE id NOT IN ({used})")
