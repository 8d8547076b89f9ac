"""What a measurement was made on: hardware, versions and commit. No name of a host, no path."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.common.processes import ROOT, serve

_PACKAGES = {
    **{name: name for name in ("torch", "litgpt", "transformers", "triton")},
    "thunder": "lightning-thunder",
}


def describe() -> dict[str, Any]:
    """The environment of this process, for the JSON of a benchmark. Imports torch."""
    import torch

    import fusioncache

    versions = {name: _version(distribution) for name, distribution in _PACKAGES.items()}
    versions |= {"torch": torch.__version__, "nvfuser": _nvfuser_version(), "fusioncache": fusioncache.__version__}
    cuda = torch.cuda.is_available()
    return {
        "machine": platform.machine(),
        "platform": platform.system(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if cuda else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit(),
    }


def device() -> str:
    """Where models run: on the GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def backend_problem(name: str) -> str | None:
    """Why a backend does not work on this machine's device; None if it does."""
    from fusioncache.backends.registry import problem

    return problem(name, device())


def commit() -> str | None:
    """The commit that is measured, ``-dirty`` if files differ from it; ``FUSIONCACHE_COMMIT`` names it without git."""
    named = os.environ.get("FUSIONCACHE_COMMIT")
    if named:
        return named
    top = _output("git", "-C", str(ROOT), "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != ROOT:
        return None
    head = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(ROOT), "status", "--porcelain")
    return f"{head}-dirty" if head and changes else head


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _nvfuser_version() -> str | None:
    """With the name of its distribution, which says what it was built for."""
    names = {str(distribution.metadata["Name"]).replace("_", "-") for distribution in metadata.distributions()}
    found = sorted(name for name in names if name.startswith("nvfuser-cu"))
    return f"{found[0]} {_version(found[0])}" if found else None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _probe(backend: str) -> dict[str, Any]:
    """What the parent process, which does not import torch, must know before it starts."""
    from fusioncache.backends.registry import best_backend

    chosen = best_backend(device()) if backend == "auto" else backend
    return {
        "environment": describe(),
        "device": device(),
        "backend": chosen,
        "problem": backend_problem(chosen),
    }


if __name__ == "__main__":
    serve(_probe)
