"""What this Thunder can do for fusioncache: each capability, how it was established, and the accelerators that need it.

A capability works if the sources of its functions are known. Otherwise its probe runs a few lines, and compares what it
observes with what it expects. Without a probe, an unknown source means that the capability is missing.

Regions and templates work with any Thunder that compiles a small function as expected. Unless the version was tried and
everything in it is as it was, the first call of each template is verified. Each accelerator is on if the capabilities
that it needs are there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from fusioncache.thunder_adapter import probes
from fusioncache.thunder_adapter.installation import accept, find_misfit
from fusioncache.thunder_adapter.patches import list_patches
from fusioncache.thunder_adapter.probes import find_missing
from fusioncache.thunder_adapter.versions import TRIED, is_tried, read_version

ACCELERATORS = ("programs", "sizes", "tracing", "lean steps", "graphs", "schedule")
"""The parts that are switched off alone. All else is the core."""

_NEEDED_BY = {**dict.fromkeys(ACCELERATORS, ()), "tracing": ("programs", "sizes"), "programs": ("sizes",)}
"""The accelerators that are off without another one."""

_WITH = " or ".join(f"lightning-thunder=={each}" for each in TRIED)


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that fusioncache relies on in Thunder.

    Attributes:
        name: shown to users.
        users: the accelerators that are off without it.
        patches: the group of rows in the table; empty for none.
        probe: returns the difference from the expected behaviour, or None if it finds none; None for no probe.
        always: whether the probe runs even if all sources are known.
    """

    name: str
    users: tuple[str, ...] = ()
    patches: str = ""
    probe: Callable[[], str | None] | None = None
    always: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of a capability in the installed Thunder.

    Attributes:
        capability: the row.
        sources: whether all sources are known; None if the capability has no rows in the table.
        misfits: for each row of the table that does not fit, the reason.
        problem: why it does not work; empty if it works.
        seconds: the duration of the probe; 0 if it did not run.
    """

    capability: Capability
    sources: bool | None
    misfits: tuple[str, ...]
    problem: str
    seconds: float = 0.0

    @property
    def works(self) -> bool:
        """True if the capability is there."""
        return not self.problem


def _name_capability(accelerator: str) -> Capability:
    def probe() -> str | None:
        missing = find_missing(accelerator)
        return f"Thunder has no {', '.join(missing[:3])}" if missing else None

    return Capability(f"names of {accelerator}", (accelerator, *_NEEDED_BY[accelerator]), probe=probe, always=True)


CAPABILITIES = (
    *map(_name_capability, ACCELERATORS),
    Capability("observed interpreter", ("programs", "sizes", "tracing"), "hooks", probes.find_unobserved),
    Capability("list of entries", ("programs", "graphs"), "stored programs", probes.find_other_entries),
    Capability("symbolic sizes", ("sizes",), "sizes"),
    Capability("symbolic passes", ("sizes",), "symbolic passes"),
)
"""Those that an accelerator cannot do without."""


def list_capabilities() -> tuple[Capability, ...]:
    """Returns all capabilities: first those that accelerators need, then those that they can do without."""
    needed = {row.patches for row in CAPABILITIES}
    return (*CAPABILITIES, *(Capability(name, (), name) for name in list_patches() if name not in needed))


def examine(capability: Capability, *, thorough: bool = False) -> Finding:
    """Returns whether a capability works here.

    Args:
        capability: to be examined.
        thorough: whether to run the probe although the sources are known.
    """
    misfits: tuple[str, ...] = ()
    sources = None
    if capability.patches:
        rows = list_patches()[capability.patches].rows
        misfits = tuple(filter(None, map(find_misfit, rows)))
        sources = not misfits
    problem, seconds = "; ".join(misfits[:3]), 0.0
    if capability.probe and (thorough or capability.always or misfits or not is_tried()):
        start = time.perf_counter()
        problem = _run(capability.probe) or ""
        seconds = time.perf_counter() - start
        if misfits and not problem:
            accept(capability.patches)
    return Finding(capability, sources, misfits, problem, seconds)


@cache
def find_off() -> Mapping[str, str]:
    """Returns the accelerators that are off in the installed Thunder, each with the reason."""
    off: dict[str, str] = {}
    for capability in CAPABILITIES:
        missing = [user for user in capability.users if user not in off]
        if missing and (problem := examine(capability).problem):
            off.update(dict.fromkeys(missing, problem))
    return MappingProxyType(off)


def _run(probe: Callable[[], str | None]) -> str | None:
    try:
        return probe()
    except Exception as error:  # whatever is otherwise in this Thunder, it is not what is known
        return f"a probe fails: {type(error).__name__}: {error}"


def explain_limits() -> str | None:
    """Returns what is off in this Thunder and why, and what to do; None if all is on and the version was tried."""
    off = find_off()
    if is_tried() and not off:
        return None
    known = "differs from the one that was tried" if read_version() in TRIED else "was not tried"
    shared = "regions are shared, and the first call of each template is verified"
    causes = defaultdict[str, list[str]](list)
    for accelerator, reason in off.items():
        causes[reason].append(accelerator)
    parts = [f"{', '.join(names)} (off: {reason})" for reason, names in causes.items()]
    without = f"; it does without {'; '.join(parts)}" if parts else ""
    more = "fusioncache doctor shows more"
    return f"Thunder {read_version()} {known}: {shared}{without}. {more}; all works with {_WITH}"


def explain_unusable() -> str | None:
    """Returns why nothing is shared in this Thunder, and what to do; None if regions can be shared."""
    problem = probes.find_missing_name() if is_tried() else probes.find_problem()
    if problem is None:
        return None
    known = f"install {_WITH}, with which this was tried"
    return f"Thunder {read_version()} is left as it is and nothing is shared, as {problem}: {known}"
