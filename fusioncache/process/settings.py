"""The environment variables of fusioncache: their names, meanings and valid values.

A variable is read at each use, not when this module is imported, because a program may set one at any time.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable.

    Attributes:
        name: of the variable.
        allowed: a pattern that the whole value must match.
        demand: a description of valid values, for people.
    """

    name: str
    allowed: str = ".*"
    demand: str = "any text"

    def get_text(self) -> str:
        """Returns the value of the variable, which is empty if it is not set.

        Raises:
            ValueError: if it is invalid.
        """
        text = os.environ.get(self.name, "")
        if text and not re.fullmatch(self.allowed, text, re.DOTALL):
            raise ValueError(f"{self.name} must be {self.demand}, got {text!r}")
        return text

    def is_on(self, option: bool | None, *, default: bool = False) -> bool:
        """Returns an option of ``FusionCache``; if it is None, whether the variable, a switch, is on.

        Args:
            option: its name is that of the variable.
            default: the result if neither is given.

        Raises:
            TypeError: if the option is none of True, False and None.
            ValueError: if the variable is invalid.
        """
        if option is None:
            return (self.get_text() or f"{default:d}") == "1"
        if not isinstance(option, bool):
            name = self.name.partition("_")[2].lower()
            raise TypeError(f"{name} must be True, False or None, got {option!r}")
        return option


UNSIGNED = "unsigned"
"""The word in ``FUSIONCACHE_TRUST`` that allows unsigned entries to run."""

_SWITCH = ("0|1", "0 or 1")
_SIGNER = rf"\s*(?:{UNSIGNED}|[0-9a-f]{{64}})\s*"
_SIGNERS = f"public keys of 64 hexadecimal digits, or {UNSIGNED}, with commas between them"

DIRECTORY = Setting("FUSIONCACHE_DIR")
"""The directory of the record and the store."""
STORE = Setting("FUSIONCACHE_STORE", *_SWITCH)
"""Whether executables are stored for later processes."""
REMOTE = Setting("FUSIONCACHE_REMOTE")
"""The URL of the remote from which entries are fetched that the local store lacks."""
TRUST = Setting("FUSIONCACHE_TRUST", f"{_SIGNER}(?:,{_SIGNER})*", _SIGNERS)
"""Public keys that are trusted besides those on the user's list, separated by commas."""
SIGNING_KEY = Setting("FUSIONCACHE_SIGNING_KEY")
"""The private key that signs entries, packs and indexes, in place of the user's file."""
LOG = Setting("FUSIONCACHE_LOG", r"(?![-01]\Z).*", "stderr, stdout or a file, such as ./1")
"""Where events are written: stderr, stdout or a file."""
EXPLAIN = Setting("FUSIONCACHE_EXPLAIN", *_SWITCH)
"""Whether each miss is explained on stderr."""
VERIFY = Setting("FUSIONCACHE_VERIFY", "0|1|all", "0, 1 or all")
"""Whether templates are compared with their regions: never, in the first call for each layout, or in all calls."""
JOBS = Setting("FUSIONCACHE_JOBS", "[0-9]{1,9}", "a number of processes, 0 or more")
"""The number of processes that compile beside the one that traces, 0 for none; by default as many as pay."""
PROGRAMS = Setting("FUSIONCACHE_PROGRAMS", *_SWITCH)
"""Whether programs are stored too, so that a later process need not trace the model again."""
SIZES = Setting("FUSIONCACHE_SIZES", "auto|static|dynamic", "auto, static or dynamic")
"""Whether regions that differ only in sizes share a compilation: those of one function, none, or all."""
GRAPHS = Setting("FUSIONCACHE_GRAPHS", *_SWITCH)
"""Whether forward and backward are captured in CUDA graphs."""
ACCELERATORS = Setting("FUSIONCACHE_ACCELERATORS")
"""The accelerators that may be used, separated by commas, or none."""
PASSES = Setting("FUSIONCACHE_PASSES", *_SWITCH)
"""Whether each trace is written to a file after each pass that changed it."""


def find_directory() -> Path:
    """Returns the directory of the record and the store: ``FUSIONCACHE_DIR``, or else one in the platform's cache.

    Raises:
        OSError: if it depends on a home directory or a current directory that does not exist.
    """
    try:
        directory = DIRECTORY.get_text()
        if not directory:
            import platformdirs

            directory = platformdirs.user_cache_dir("fusioncache", appauthor=False)
        return Path(os.path.expanduser(directory)).absolute()  # a program may change its directory
    except (RuntimeError, OSError) as error:
        raise OSError(f"no directory is found: {error}. Set {DIRECTORY.name} to an absolute path") from error
