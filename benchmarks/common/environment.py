"""Hardware, versions and commit of a measurement, without host names and paths."""

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
from benchmarks.common.processes import ROOT, print_progress

_PACKAGES = {
    **{name: name for name in ("torch", "litgpt", "transformers", "triton")},
    "thunder": "lightning-thunder",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as a benchmark's parent process, which does not import torch, needs it to start workers.

    Attributes:
        environment: as in the JSON.
        device: that models run on: ``"cuda"`` or ``"cpu"``.
        backend: to use.
        problem: why the backend does not work on this device; None if it does.
    """

    environment: dict[str, Any]
    device: str
    backend: str
    problem: str | None = None

    def place(self, model: str = "llama", dtype: str | None = None) -> dict[str, str]:
        """Returns the fields of ``Place`` for a model, with the given dtype or the default of ``choose_dtype``."""
        return {"backend": self.backend, "device": self.device, "dtype": dtype or self.choose_dtype(model)}

    def choose_dtype(self, model: str) -> str:
        """Returns the default dtype of a model: bfloat16, in which a GPU is fast, or float32."""
        return "bfloat16" if self.device == "cuda" and model != "residual" else "float32"


def inspect_machine(backend: str) -> Machine:
    """Returns the machine and the backend to use, as determined in a process that imports torch.

    Raises:
        click.UsageError: if the backend does not work here; the message says why.
    """
    print_progress("looking at the hardware and the versions\n")
    machine = Machine(**processes.call("benchmarks.common.environment:probe", backend))
    if machine.problem:
        raise click.UsageError(f"--backend {backend} does not work here: {machine.problem}")
    return machine


def describe() -> dict[str, Any]:
    """Returns hardware, versions and commit of this process, for the JSON of a benchmark. Imports torch."""
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
    """Returns the device that models run on: the GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def commit() -> str | None:
    """Returns the commit that is measured, with ``-dirty`` if files differ from it.

    The variable ``FUSIONCACHE_COMMIT`` overrides it, for machines without git.
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
    """Returns the name of nvFuser's distribution, which contains a CUDA version, and its version; None if missing."""
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


def choose_backend(requested: str) -> tuple[str, str | None]:
    """Returns the requested backend, or the best one for ``"auto"``, and why it does not work here, or None."""
    from fusioncache.backends.api import best_backend, problem

    backend = best_backend(device()) if requested == "auto" else requested
    return backend, problem(backend, device())


def probe(requested: str) -> dict[str, Any]:
    """Returns the fields of ``Machine``."""
    return asdict(Machine(describe(), device(), *choose_backend(requested)))
