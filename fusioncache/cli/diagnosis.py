"""What ``fusioncache doctor`` finds out about this machine, and what each finding means for the user."""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

_DRIVER = Path("/proc/driver/nvidia/version")
_PACKAGES = ("fusioncache", "lightning-thunder", "torch", "triton", "networkx")


@dataclass(frozen=True, slots=True)
class CapabilityReport:
    """A capability of Thunder.

    Attributes:
        name: of it.
        needed_by: the accelerators that are off without it; empty if it only makes something faster.
        works: whether it is there.
        how: ``known source``, ``probe`` or ``names``: how that was established; empty if it is not there.
        problem: why it is not there; empty if it is.
        seconds: the duration of its probe; 0 if it has none.
    """

    name: str
    needed_by: tuple[str, ...]
    works: bool
    how: str
    problem: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MisfitReport:
    """A function of Thunder with another source than the replacement, or what relies on it, was written for.

    Attributes:
        capability: that it belongs to.
        original: its name.
        digest: of the installed source; None if there is none.
        difference: the lines of a diff to the installed source.
    """

    capability: str
    original: str
    digest: str | None
    difference: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The store on disk.

    Attributes:
        path: where it is, or will be.
        exists: whether it is there.
        writable: whether entries can be added.
        bytes: its size; None if it is not there.
        mode: its permissions, such as ``drwxr-xr-x``; None if it is not there.
        problem: why it cannot be used; empty if it can.
    """

    path: str
    exists: bool
    writable: bool
    bytes: int | None
    mode: str | None
    problem: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings.

    Attributes:
        versions: of what is installed, by name; None where nothing is.
        unusable: why nothing is shared; empty if regions are shared.
        limits: what is off in this Thunder and why; empty if everything is on.
        off: the accelerators that are off, each with the reason.
        capabilities: of Thunder.
        misfits: the functions with another source.
        faults: what fails in this combination without fusioncache as well.
        backends: why each compiler cannot be used; empty text where it can.
        store: on disk.
        advice: what to do, most important first.
        sources: the digest of the installed Thunder's sources; empty if it cannot be imported.
    """

    versions: dict[str, str | None]
    unusable: str = ""
    limits: str = ""
    off: dict[str, str] = field(default_factory=dict)
    capabilities: tuple[CapabilityReport, ...] = ()
    misfits: tuple[MisfitReport, ...] = ()
    faults: tuple[str, ...] = ()
    backends: dict[str, str] = field(default_factory=dict)
    store: StoreReport | None = None
    advice: tuple[str, ...] = ()
    sources: str = ""

    @property
    def status(self) -> int:
        """The exit status: 0 if all works, 1 if something is off, 2 if nothing is shared."""
        if self.unusable:
            return 2
        return 1 if self.limits or self.misfits or (self.store and self.store.problem) else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns all findings for JSON."""
        return {"status": self.status, **asdict(self)}


def diagnose(directory: Path | None) -> Diagnosis:
    """Examines this machine. Every probe runs, also those of functions whose source is known.

    Args:
        directory: of the store; None for the default one.
    """
    from fusioncache.thunder_adapter.versions import find_import_problem

    versions, store = read_versions(), examine_store(directory)
    problem = find_import_problem()
    if problem:
        return Diagnosis(versions, unusable=problem, store=store, advice=(_advise_import(versions),))
    from fusioncache.thunder_adapter.capabilities import explain_limits, explain_unusable, find_off
    from fusioncache.thunder_adapter.versions import explain_fault, find_faults, read_digest

    capabilities, misfits = tuple(_report_capabilities()), tuple(_report_misfits())
    found = Diagnosis(
        versions,
        explain_unusable() or "",
        explain_limits() or "",
        dict(find_off()),
        capabilities,
        misfits,
        tuple(map(explain_fault, find_faults())),
        dict(_examine_backends()),
        store,
    )
    return replace(found, advice=tuple(_advise(found)), sources=read_digest())


def read_versions() -> dict[str, str | None]:
    """Returns the versions of what fusioncache runs on; None where something is missing."""
    from fusioncache.backends.inductor.environment import read_compiler

    compiler = read_compiler((os.environ.get("CXX", "g++"),))
    found: dict[str, str | None] = {"Python": platform.python_version(), "machine": platform.machine()}
    found |= {name: _read_package(name) for name in _PACKAGES}
    return found | {"nvfuser": _read_nvfuser(), "NVIDIA driver": _read_driver(), "C++ compiler": compiler or None}


def _read_package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read_nvfuser() -> str | None:
    names = sorted(name for dist in metadata.distributions() if (name := dist.name or "").startswith("nvfuser"))
    return ", ".join(f"{name} {metadata.version(name)}" for name in dict.fromkeys(names)) or None


def _read_driver() -> str | None:
    try:
        match = re.search(r"(\d+\.\d+[.\d]*)", _DRIVER.read_text())
    except OSError:
        return None
    return match[1] if match else None


def _report_capabilities() -> Iterator[CapabilityReport]:
    from fusioncache.thunder_adapter import installation
    from fusioncache.thunder_adapter.capabilities import examine, list_capabilities

    installation.install()  # as a FusionCache does: the probes take less time then
    for capability in list_capabilities():
        finding = examine(capability, thorough=True)
        how = ""
        if finding.works:
            how = "known source" if finding.sources else "names" if capability.always else "probe"
        if finding.works and finding.sources and capability.probe:
            how = "known source and probe"
        yield CapabilityReport(capability.name, capability.users, finding.works, how, finding.problem, finding.seconds)


def _report_misfits() -> Iterator[MisfitReport]:
    from fusioncache.thunder_adapter.installation import find_misfit, read_installed, read_sources, write_difference
    from fusioncache.thunder_adapter.patches import list_patches

    known, seen = read_sources(), set[str]()
    for group in list_patches().values():
        for row in group.rows:
            module = row.original.partition(":")[0]
            optional = module.startswith(("thunder.dynamo", "torch._inductor")) and module not in sys.modules
            if row.original in seen or optional or find_misfit(row) is None:
                continue
            seen.add(row.original)
            installed = read_installed(row)
            difference = tuple(write_difference(row, known))
            yield MisfitReport(group.name, row.original, installed[0] if installed else None, difference)


def _examine_backends() -> Iterator[tuple[str, str]]:
    from fusioncache.backends.api import problem

    yield "nvFuser on a GPU", problem("nvfuser", "cuda") or ""
    yield "TorchInductor on a CPU", problem("inductor", "cpu") or ""


def examine_store(directory: Path | None) -> StoreReport:
    """Returns what is known of the store in a directory, which need not exist."""
    from fusioncache.store import default_path

    path = directory or default_path()
    there = path.exists()
    nearest = next(each for each in (path, *path.parents) if each.exists())
    writable = os.access(nearest, os.W_OK | os.X_OK)
    mode = _format_mode(path) if there else None
    problem = "" if writable else f"{nearest} cannot be written: nothing is stored for later processes"
    return StoreReport(str(path), there, writable, _measure(path) if there else None, mode, problem)


def _measure(path: Path) -> int:
    """Returns the bytes of all files in a folder; those that go meanwhile do not count."""
    sizes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                sizes += Path(folder, name).lstat().st_size
    return sizes


def _format_mode(path: Path) -> str:
    return stat.filemode(path.stat().st_mode)


def _advise(found: Diagnosis) -> Iterator[str]:
    if found.unusable:
        yield found.unusable
    elif found.limits:
        yield found.limits
    yield from found.faults
    if found.misfits and not found.unusable:
        yield "report the differences above, with fusioncache doctor --json, or see docs/porting.md to accept them"
    if all(found.backends.values()):
        yield from found.backends.values()
    if found.store and found.store.problem:
        yield f"the store: {found.store.problem}. Set FUSIONCACHE_DIR to a directory that can be written"


def _advise_import(versions: dict[str, str | None]) -> str:
    if versions["lightning-thunder"] is None:
        return "install Thunder: pip install lightning-thunder"
    if re.match(r"2\.(1[3-9]|[2-9]\d)", versions["torch"] or ""):
        return "install torch 2.10 or 2.11: Thunder cannot be imported with later versions"
    return "repair the installation of Thunder: python -c 'import thunder' shows what it lacks"
