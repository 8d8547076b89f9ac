"""The variables of the environment that set fusioncache: what each is called, what it means and what it may say.

A variable is read when it is used, not when this module is imported: a program may set one at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of the environment.

    Attributes:
        name: of the variable.
        meaning: what it sets, as a sentence without its subject.
        find_demand: returns what the variable must be if it must not be this text, and None if it may.
    """

    name: str
    meaning: str
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


def _find_demand_on_log(text: str) -> str | None:
    meant = _UNLIKELY_FILES.get(text)
    return f"stderr, stdout or a file, got {text!r}: say {meant}" if meant else None


DIRECTORY = Setting("FUSIONCACHE_DIR", "names the directory of the record and the store")
STORE = Setting("FUSIONCACHE_STORE", "says whether what is compiled is stored for later processes", _one_of("0", "1"))
REMOTE = Setting("FUSIONCACHE_REMOTE", "is the URL of a store that is asked for what is not in the local one")
LOG = Setting("FUSIONCACHE_LOG", "says where events are written: stderr, stdout or a file", _find_demand_on_log)
EXPLAIN = Setting("FUSIONCACHE_EXPLAIN", "says whether each miss is explained on stderr", _one_of("0", "1"))
VERIFY = Setting(
    "FUSIONCACHE_VERIFY",
    "says whether templates are compared with their regions: in the first call for each layout, or in all calls",
    _one_of("0", "1", "all"),
)
JOBS = Setting(
    "FUSIONCACHE_JOBS",
    "says how many processes compile beside the one that traces, 0 for none; by default as many as pay",
    _find_demand_on_number,
)
PROGRAMS = Setting(
    "FUSIONCACHE_PROGRAMS",
    "says whether what Thunder makes of a model is stored too, so that a later process need not trace it again",
    _one_of("0", "1"),
)
SIZES = Setting(
    "FUSIONCACHE_SIZES",
    "says whether regions that differ only in sizes share a compilation: those of one function, none, or all",
    _one_of("auto", "static", "dynamic"),
)
GRAPHS = Setting(
    "FUSIONCACHE_GRAPHS", "says whether forward and backward are captured in CUDA graphs", _one_of("0", "1")
)
ACCELERATORS = Setting(
    "FUSIONCACHE_ACCELERATORS", "lists the accelerators that may be used, with commas between them, or says none"
)
PASSES = Setting(
    "FUSIONCACHE_PASSES",
    "says whether each trace is written to a file after each pass that changed it",
    _one_of("0", "1"),
)
SETTINGS = (DIRECTORY, STORE, REMOTE, LOG, EXPLAIN, VERIFY, JOBS, PROGRAMS, SIZES, GRAPHS, ACCELERATORS, PASSES)


def find_directory() -> Path:
    """Returns the directory of the record and the store: ``FUSIONCACHE_DIR``, or else the platform's for caches."""
    directory = DIRECTORY.get_text()
    if not directory:
        import platformdirs

        directory = platformdirs.user_cache_dir("fusioncache", appauthor=False)
    return Path(os.path.expanduser(directory))
