"""Which versions of Thunder the package was tried with, and what works in the one that is installed.

Regions and templates work with any Thunder that compiles a small function as expected. Unless the version was tried and
everything in it is as it was, the first call of each template is verified. Each accelerator is on if the capabilities
that it needs are there.
"""

from __future__ import annotations

from collections import defaultdict

from fusioncache.thunder_adapter import canned
from fusioncache.thunder_adapter.capabilities import find_off
from fusioncache.thunder_adapter.version import TRIED, is_tried, read_version

_WITH = " or ".join(f"lightning-thunder=={each}" for each in TRIED)


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
    problem = canned.find_missing_name() if is_tried() else canned.find_problem()
    if problem is None:
        return None
    known = f"install {_WITH}, with which this was tried"
    return f"Thunder {read_version()} is left as it is and nothing is shared, as {problem}: {known}"
