"""A process that compiles ahead for another one: an entry's id on each line of stdin, what became of it on stdout."""

from __future__ import annotations

import json
import os
import sys

from fusioncache.precompile.arguments import available_device_types
from fusioncache.precompile.entry_compiler import EntryCompiler
from fusioncache.store import Store

READY = "ready\n"


def main(directory: str) -> None:
    """Works until stdin ends."""
    # Compilers and whatever they start may print, and may read: the lines are for this process alone.
    asks, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    store = Store.open(directory)
    compiler = EntryCompiler(store)
    available_device_types()  # imports torch: what is wrong with that is wrong with no entry
    print(READY, end="", file=answers, flush=True)
    for line in asks:
        outcome = compiler.compile(json.loads(line))
        print(json.dumps([outcome.result, outcome.reason, outcome.passing]), file=answers, flush=True)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
