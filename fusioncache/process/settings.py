"""The variables of the environment that set fusioncache: what each is called, what it means and what it may say.

A variable is read when it is used, not when this module is imported: a program may set one at any time.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of the environment.

    Attributes:
        name: of the variable.
        allowed: a pattern that all of what it says has to match.
        demand: what that is, for people.
    """

    name: str
    allowed: str = ".*"
    demand: str = "any text"

    def get_text(self) -> str:
        """Returns what the variable says, which is empty if it is not set.

        Raises:
            ValueError: if it says something that it may not.
        """
        text = os.environ.get(self.name, "")
        if text and not re.fullmatch(self.allowed, text, re.DOTALL):
            raise ValueError(f"{self.name} must be {self.demand}, got {text!r}")
        return text


UNSIGNED = "unsigned"
"""The word in ``FUSIONCACHE_TRUST`` that lets what is not signed run."""

_SWITCH = ("0|1", "0 or 1")
_SIGNER = rf"\s*(?:{UNSIGNED}|[0-9a-f]{{64}})\s*"
_SIGNERS = f"public keys of 64 hexadecimal digits, or {UNSIGNED}, with commas between them"

DIRECTORY = Setting("FUSIONCACHE_DIR")
"""Names the directory of the record and the store."""
STORE = Setting("FUSIONCACHE_STORE", *_SWITCH)
"""Says whether what is compiled is stored for later processes."""
REMOTE = Setting("FUSIONCACHE_REMOTE")
"""Is the URL of a store that is asked for what is not in the local one."""
TRUST = Setting("FUSIONCACHE_TRUST", f"{_SIGNER}(?:,{_SIGNER})*", _SIGNERS)
"""Lists the public keys, with commas between them, whose entries run here besides those that are on the user's list."""
SIGNING_KEY = Setting("FUSIONCACHE_SIGNING_KEY")
"""Is the private key that signs what goes to a remote or into a pack, in place of the user's file."""
LOG = Setting("FUSIONCACHE_LOG", r"(?![-01]\Z).*", "stderr, stdout or a file, such as ./1")
"""Says where events are written: stderr, stdout or a file."""
EXPLAIN = Setting("FUSIONCACHE_EXPLAIN", *_SWITCH)
"""Says whether each miss is explained on stderr."""
VERIFY = Setting("FUSIONCACHE_VERIFY", "0|1|all", "0, 1 or all")
"""Says whether templates are compared with their regions: in the first call for each layout, or in all calls."""
JOBS = Setting("FUSIONCACHE_JOBS", "[0-9]+", "a number of processes, 0 or more")
"""Says how many processes compile beside the one that traces, 0 for none; by default as many as pay."""
PROGRAMS = Setting("FUSIONCACHE_PROGRAMS", *_SWITCH)
"""Says whether what Thunder makes of a model is stored too, so that a later process need not trace it again."""
SIZES = Setting("FUSIONCACHE_SIZES", "auto|static|dynamic", "auto, static or dynamic")
"""Says whether regions that differ only in sizes share a compilation: those of one function, none, or all."""
GRAPHS = Setting("FUSIONCACHE_GRAPHS", *_SWITCH)
"""Says whether forward and backward are captured in CUDA graphs."""
ACCELERATORS = Setting("FUSIONCACHE_ACCELERATORS")
"""Lists the accelerators that may be used, with commas between them, or says none."""
PASSES = Setting("FUSIONCACHE_PASSES", *_SWITCH)
"""Says whether each trace is written to a file after each pass that changed it."""


def find_directory() -> Path:
    """Returns the directory of the record and the store: ``FUSIONCACHE_DIR``, or else the platform's for caches."""
    directory = DIRECTORY.get_text()
    if not directory:
        import platformdirs

        directory = platformdirs.user_cache_dir("fusioncache", appauthor=False)
    return Path(os.path.expanduser(directory))
