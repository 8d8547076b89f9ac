"""What a measurement was made on: hardware, versions and commit. No name of a host, no path."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.processes import ROOT, say

_PACKAGES = {
    **{name: name for name in ("torch", "litgpt", "transformers", "triton")},
    "thunder": "lightning-thunder",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a benchmark's parent process, which does not import torch, must know before it starts its workers.

    Attributes:
        environment: as in the JSON.
        device: where models run: ``"cuda"`` or ``"cpu"``.
        backend: the one to use.
        problem: why that does not work on this device; None if it does.
    """

    environment: dict[str, Any]
    device: str
    backend: str
    problem: str | None = None

    def place(self, model: str = "llama", dtype: str | None = None) -> dict[str, str]:
        """Returns where a model runs, as ``Place`` has it: in a dtype that is asked for, or in the model's own here."""
        return {"backend": self.backend, "device": self.device, "dtype": dtype or self.choose_dtype(model)}

    def choose_dtype(self, model: str) -> str:
        """Returns the dtype of a model if none is asked for: the narrow one that a GPU is fast with."""
        return "bfloat16" if self.device == "cuda" and model != "residual" else "float32"


def inspect_machine(backend: str) -> Machine:
    """Finds out about the machine and the backend to use, in a process that imports torch.

    Raises:
        click.UsageError: if the backend does not work here; the message says why.
    """
    say("looking at the hardware and the versions\n")
    machine = Machine(**processes.call("benchmarks.common.environment:probe", backend))
    if machine.problem:
        raise click.UsageError(f"--backend {backend} does not work here: {machine.problem}")
    return machine


def describe() -> dict[str, Any]:
    """Describes what this process runs on, for the JSON of a benchmark. Imports torch."""
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
    """Returns where models run: on the GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def commit() -> str | None:
    """Returns the commit that is measured, with ``-dirty`` if files differ from it.

    ``FUSIONCACHE_COMMIT`` names it where there is no git.
    """
    return os.environ.get("FUSIONCACHE_COMMIT") or find_commit(ROOT)


def find_commit(root: Path) -> str | None:
    """Returns the commit of a checkout, with ``-dirty`` if files differ from it; None if it is no checkout."""
    top = _output("git", "-C", str(root), "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return None
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(root), "status", "--porcelain")
    return f"{head}-dirty" if head and changes else head


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _nvfuser_version() -> str | None:
    """Returns its version with the name of its distribution, which says what it was built for."""
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


def choose_backend(asked: str) -> tuple[str, str | None]:
    """Returns the backend that is asked for, or the best one, and why that does not work here, if it does not."""
    from fusioncache.backends.api import best_backend, problem

    backend = best_backend(device()) if asked == "auto" else asked
    return backend, problem(backend, device())


def probe(asked: str) -> dict[str, Any]:
    """Returns what ``Machine`` has."""
    return asdict(Machine(describe(), device(), *choose_backend(asked)))
