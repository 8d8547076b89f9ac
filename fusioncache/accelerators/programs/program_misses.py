"""Says at once why a program is derived although the store has one of the same model."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fusioncache.accelerators.programs.reads import ReadDifference
from fusioncache.ir import Key
from fusioncache.ir.key_text import read_key
from fusioncache.observe.explain.difference import find_nearest
from fusioncache.observe.explain.program_difference import (
    ProgramDifference,
    compare_program_keys,
    compare_read,
    write_program_miss,
)
from fusioncache.store import Store
from fusioncache.store.entry import is_outdated, is_program

_MOST_COMPARED = 32
"""How many stored programs of one name are compared, the newest first."""


def explain_program_miss(name: str, key: Key, differences: Sequence[ReadDifference], store: Store) -> None:
    """Prints one sentence to stderr, unless the store has no program of this name.

    Args:
        name: of the model.
        key: of its program.
        differences: what differs from the stored programs with this key, for each what was found first.
        store: has the others.
    """
    found = [_compare_read(difference) for difference in differences] or _compare_keys(name, key, store)
    if found:
        text = write_program_miss(name, found[0], len(found) - 1)
        print(f"fusioncache: {text}", file=sys.stderr, flush=True)


def _compare_read(difference: ReadDifference) -> ProgramDifference:
    read = difference.read
    return compare_read(read.kind, read.name, read.text, difference.now)


def _compare_keys(name: str, key: Key, store: Store) -> Sequence[ProgramDifference]:
    entries = [each for each in store.entries() if is_program(each.backend) and each.name == name][:_MOST_COMPARED]
    known = [store.entry(each.digest, each.backend) for each in entries]
    # The last one of several that are equally near is taken: the newest.
    texts = [read_key(entry.text) for entry in reversed(known) if entry is not None and not is_outdated(entry.text)]
    nearest = find_nearest(key.texts, texts)
    return () if nearest is None else compare_program_keys(texts[nearest], key.texts)
