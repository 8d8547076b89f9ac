"""Which versions of Thunder the package was tried with, and what works with another one.

Regions and templates work with any Thunder that compiles a small function as expected; the first call of each template
is verified there. All else rests on what was read in one version, and is off.
"""

from __future__ import annotations

from fusioncache.thunder_adapter import canned

TRIED = ("0.2.6",)
_OFF = "programs, sizes, faster tracing, lean steps, CUDA graphs and the order of collectives are off"


def explain_untried() -> str | None:
    """Returns what is off in this Thunder, and what to do; None if it is a version that was tried."""
    version = read_version()
    if version.partition("+")[0] in TRIED:
        return None
    tried = " or ".join(f"lightning-thunder=={each}" for each in TRIED)
    shared = f"regions are shared, and the first call of each template is verified; {_OFF}"
    return f"Thunder {version} was not tried: {shared}. To have them, install {tried}"


def explain_unusable() -> str | None:
    """Returns why nothing is shared in this Thunder, and what to do; None if regions can be shared."""
    if explain_untried() is None or (problem := canned.find_problem()) is None:
        return None
    tried = " or ".join(f"lightning-thunder=={each}" for each in TRIED)
    known = f"install {tried}, with which this was tried"
    return f"Thunder {read_version()} is left as it is and nothing is shared, as {problem}: {known}"


def read_version() -> str:
    """Returns the version of the Thunder that is installed."""
    import thunder

    return str(getattr(thunder, "__version__", "of no known version"))
