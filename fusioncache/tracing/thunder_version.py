"""Which versions of Thunder the package was tried with. Regions are read and rewritten through Thunder's internals."""

from __future__ import annotations

TRIED = ("0.2.6",)


def explain_untried() -> str | None:
    """Returns why this Thunder is left alone, and what to do; None if it is one that was tried."""
    import thunder

    version = getattr(thunder, "__version__", "of no known version")
    if version.partition("+")[0] in TRIED:
        return None
    tried = " or ".join(f"lightning-thunder=={each}" for each in TRIED)
    return f"Thunder {version} is left as it is and nothing is shared: install {tried}, with which this was tried"
