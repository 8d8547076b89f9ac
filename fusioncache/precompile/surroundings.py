"""What compilers depend on outside a process, as one digest that takes no compiler to compute.

It has more in it than any key, so that what is not known to matter makes it another one. It must not have less in it:
who finds it equal starts no process to ask again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_NOISE = re.compile(
    r"_|SHLVL|(OLD)?PWD|TERM.*|COLUMNS|LINES|COLORTERM|LS_COLORS|WINDOWID|DISPLAY|WAYLAND_DISPLAY|STY|TMUX.*|SSH_.*|"
    r"XDG_SESSION_.*|DBUS_.*|VTE_.*|PS\d|PROMPT.*|HIST.*|PYTEST_CURRENT_TEST|FUSIONCACHE_(LOG|EXPLAIN)"
)
"""Variables that say where somebody sits, and what is logged, but nothing of what is compiled."""

_COMPILERS = ("c++", "g++", "gcc", "clang++", "clang", "nvcc", "ptxas")
_PROCESSOR = re.compile(r"(flags|Features|vendor_id|cpu family|model|CPU part)\b")
_DRIVER = Path("/proc/driver/nvidia")


def surroundings() -> str:
    """The digest of installed packages, the environment, the processor, the GPUs, their driver and the compilers."""
    return hashlib.sha256("\n".join(_facts()).encode(errors="surrogateescape")).hexdigest()


def _facts() -> Iterator[str]:
    yield f"python {sys.version} {sys.executable}"
    yield f"platform {platform.uname()} {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else ''}"
    yield from sorted(f"{name}={value}" for name, value in os.environ.items() if not _NOISE.fullmatch(name))
    yield from sorted(_packages())
    yield from (_stamp(path) for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    yield from (_stamp(Path(path)) for path in filter(None, map(shutil.which, _compilers())))
    yield from sorted({line for line in _text(Path("/proc/cpuinfo")).splitlines() if _PROCESSOR.match(line)})
    yield _text(_DRIVER / "version")
    yield from (_text(path) for path in sorted(_DRIVER.glob("gpus/*/information")))


def _packages() -> Iterator[str]:
    """What is installed, by the names of folders that have the version in them, and when it was."""
    for folder in dict.fromkeys(sys.path):
        with suppress(OSError), os.scandir(folder or ".") as found:
            yield from (
                f"{file.path} {file.stat().st_mtime_ns}"
                for file in found
                if file.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth"))
            )


def _compilers() -> list[str]:
    return [*_COMPILERS, *filter(None, (os.environ.get(name, "").split(" ")[0] for name in ("CC", "CXX")))]


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path} gone"
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
