"""The variables of the environment that set fusioncache: what each is called, what it means and what it may say.

A variable is read when it is used, not when this module is imported: a program may set one at any time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of the environment.

    Attributes:
        name: of the variable.
        find_demand: returns what the variable must be if it must not be this text, and None if it may.
    """

    name: str
    find_demand: Callable[[str], str | None] = lambda text: None

    def get_text(self) -> str:
        """Returns what the variable says, which is empty if it is not set.

        Raises:
            ValueError: if it says something that it may not.
        """
        text = os.environ.get(self.name, "")
        demand = self.find_demand(text) if text else None
        if demand:
            raise ValueError(f"{self.name} must be {demand}")
        return text


def _one_of(first: str, *others: str) -> Callable[[str], str | None]:
    def find_demand(text: str) -> str | None:
        if text in (first, *others):
            return None
        return f"{', '.join((first, *others[:-1]))} or {others[-1]}, got {text!r}"

    return find_demand


def _find_demand_on_number(text: str) -> str | None:
    return None if text.isdecimal() and text.isascii() else f"a number of processes, 0 or more, got {text!r}"


_UNLIKELY_FILES = {"-": "stderr or stdout", "0": "./0", "1": "stderr, or ./1"}
"""What people write who mean something else than a file of that name, and what they may mean."""


UNSIGNED = "unsigned"
"""The word in ``FUSIONCACHE_TRUST`` that lets what is not signed run."""


def _find_demand_on_trust(text: str) -> str | None:
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word != UNSIGNED and not re.fullmatch("[0-9a-f]{64}", word)]
    demand = f"public keys of 64 hexadecimal digits, or {UNSIGNED}, with commas between them"
    return f"{demand}, got {wrong[0]!r}" if wrong else None


def _find_demand_on_log(text: str) -> str | None:
    meant = _UNLIKELY_FILES.get(text)
    return f"stderr, stdout or a file, got {text!r}: say {meant}" if meant else None


DIRECTORY = Setting("FUSIONCACHE_DIR")
"""Names the directory of the record and the store."""
STORE = Setting("FUSIONCACHE_STORE", _one_of("0", "1"))
"""Says whether what is compiled is stored for later processes."""
REMOTE = Setting("FUSIONCACHE_REMOTE")
"""Is the URL of a store that is asked for what is not in the local one."""
TRUST = Setting("FUSIONCACHE_TRUST", _find_demand_on_trust)
"""Lists the public keys, with commas between them, whose entries run here besides those that are on the user's list."""
SIGNING_KEY = Setting("FUSIONCACHE_SIGNING_KEY")
"""Is the private key that signs what goes to a remote or into a pack, in place of the user's file."""
LOG = Setting("FUSIONCACHE_LOG", _find_demand_on_log)
"""Says where events are written: stderr, stdout or a file."""
EXPLAIN = Setting("FUSIONCACHE_EXPLAIN", _one_of("0", "1"))
"""Says whether each miss is explained on stderr."""
VERIFY = Setting("FUSIONCACHE_VERIFY", _one_of("0", "1", "all"))
"""Says whether templates are compared with their regions: in the first call for each layout, or in all calls."""
JOBS = Setting("FUSIONCACHE_JOBS", _find_demand_on_number)
"""Says how many processes compile beside the one that traces, 0 for none; by default as many as pay."""
PROGRAMS = Setting("FUSIONCACHE_PROGRAMS", _one_of("0", "1"))
"""Says whether what Thunder makes of a model is stored too, so that a later process need not trace it again."""
SIZES = Setting("FUSIONCACHE_SIZES", _one_of("auto", "static", "dynamic"))
"""Says whether regions that differ only in sizes share a compilation: those of one function, none, or all."""
GRAPHS = Setting("FUSIONCACHE_GRAPHS", _one_of("0", "1"))
"""Says whether forward and backward are captured in CUDA graphs."""
ACCELERATORS = Setting("FUSIONCACHE_ACCELERATORS")
"""Lists the accelerators that may be used, with commas between them, or says none."""
PASSES = Setting("FUSIONCACHE_PASSES", _one_of("0", "1"))
"""Says whether each trace is written to a file after each pass that changed it."""
SETTINGS = (
    *(DIRECTORY, STORE, REMOTE, TRUST, SIGNING_KEY, LOG, EXPLAIN, VERIFY, JOBS),
    *(PROGRAMS, SIZES, GRAPHS, ACCELERATORS, PASSES),
)


def find_directory() -> Path:
    """Returns the directory of the record and the store: ``FUSIONCACHE_DIR``, or else the platform's for caches."""
    directory = DIRECTORY.get_text()
    if not directory:
        import platformdirs

        directory = platformdirs.user_cache_dir("fusioncache", appauthor=False)
    return Path(os.path.expanduser(directory))
