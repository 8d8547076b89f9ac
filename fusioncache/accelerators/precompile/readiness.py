"""Remembers that all of a store is ready for these surroundings, so that nobody starts a compiler to find that out.

Only for processes that change no settings of compilers in their code, as those of the command line are.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from fusioncache.accelerators.precompile.warm import Warmed
from fusioncache.ir.strict_json import decode, encode
from fusioncache.store import Store
from fusioncache.store.entry import is_compiled
from fusioncache.store.files import Refusal, publish, read_private

_FILE = "warmed"
_LARGEST = 1 << 16
_NOISE = re.compile(
    r"_|SHLVL|(OLD)?PWD|TERM.*|COLUMNS|LINES|COLORTERM|LS_COLORS|WINDOWID|DISPLAY|WAYLAND_DISPLAY|STY|TMUX.*|SSH_.*|"
    r"XDG_SESSION_.*|DBUS_.*|VTE_.*|PS\d|PROMPT.*|HIST.*|PYTEST_CURRENT_TEST|FUSIONCACHE_(LOG|EXPLAIN)"
)
"""Variables that say where somebody sits, and what is logged, but nothing of what is compiled."""

_COMPILERS = ("c++", "g++", "gcc", "clang++", "clang", "nvcc", "ptxas")
_PROCESSOR = re.compile(r"(flags|Features|vendor_id|cpu family|model|CPU part)\b")
_DRIVER = Path("/proc/driver/nvidia")


def recall(store: Store) -> Warmed | None:
    """Returns what compiling ahead would come to if it were done again; None if that takes looking. Never raises."""
    if store.directory is None:
        return None
    with suppress(Refusal, OSError, ValueError):
        content = read_private(store.directory / _FILE, _LARGEST)
        return _read_warmed(content, store) if content else None
    return None


def remember(store: Store, warmed: Warmed) -> None:
    """Notes what came of compiling ahead, unless the next time may come to something else.

    Never raises: where the note cannot be written, the next one looks again.
    """
    if store.directory is None or warmed.failed or warmed.passing:
        return
    with suppress(OSError):
        ready = warmed.ready + warmed.compiled
        known = sum(is_compiled(entry.backend) for entry in store.entries())
        refused = sorted(warmed.refused.items())
        body = {"state": _digest_state(store), "known": known, "ready": ready, "refused": refused}
        publish(store.directory / _FILE, encode(body))


def _read_warmed(content: bytes, store: Store) -> Warmed | None:
    state, known, ready, refused = decode(content, "readiness").fields("state", "known", "ready", "refused")
    if state.text() != _digest_state(store):
        return None
    reasons = {reason.text(): number.integer() for reason, number in (pair.items(2) for pair in refused.items())}
    return Warmed(known.integer(), ready.integer(), 0, MappingProxyType(reasons), 0, 0.0)


def _digest_state(store: Store) -> str:
    """Returns the digest of what a store has and what it is used in."""
    if store.disk is None:
        raise ValueError("a store in memory")
    entries = sorted((id_, file.inode, file.size) for id_, file in store.disk.entries.list_files().items())
    text = json.dumps([entries, sorted(store.disk.sizes().items()), digest_surroundings()])
    return hashlib.sha256(text.encode()).hexdigest()


def digest_surroundings() -> str:
    """Returns the digest of installed packages, variables, the processor, the GPUs, their driver and the compilers.

    No compiler is started for it. The digest depends on more than any key does, so that what is not known to matter
    changes it. It must not depend on less: where it is equal, no process is started to ask again.
    """
    return hashlib.sha256("\n".join(_describe_surroundings()).encode(errors="surrogateescape")).hexdigest()


def _describe_surroundings() -> Iterator[str]:
    yield f"python {sys.version} {sys.executable}"
    yield f"platform {platform.uname()} {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else ''}"
    yield from sorted(f"{name}={value}" for name, value in os.environ.items() if not _NOISE.fullmatch(name))
    yield from sorted(_packages())
    yield from (_stamp(path) for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    yield from (_stamp(Path(path)) for path in filter(None, map(shutil.which, _compiler_names())))
    yield from sorted({line for line in _read(Path("/proc/cpuinfo")).splitlines() if _PROCESSOR.match(line)})
    yield _read(_DRIVER / "version")
    yield from (_read(path) for path in sorted(_DRIVER.glob("gpus/*/information")))


def _packages() -> Iterator[str]:
    """Names what is installed, by folders that have the version in their names, and when it was."""
    for folder in dict.fromkeys(sys.path):
        with suppress(OSError), os.scandir(folder or ".") as found:
            yield from (
                f"{file.path} {file.stat().st_mtime_ns}"
                for file in found
                if file.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth"))
            )


def _compiler_names() -> list[str]:
    return [*_COMPILERS, *filter(None, (os.environ.get(name, "").split(" ")[0] for name in ("CC", "CXX")))]


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path} gone"
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
