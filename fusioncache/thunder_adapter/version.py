"""The version of the installed Thunder, and those that were tried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fusioncache.process.source_digest import digest_sources

TRIED: Mapping[str, str] = MappingProxyType(
    {
        "0.2.6": "07ff75b02527f853015c7d3a0592746445fee864",
        "0.2.7.dev20260201": "b355071944649c5ffb3396612902d4e1b1da9848",
    }
)
"""The versions in which all tests pass, each with the digest of its sources."""


def is_tried() -> bool:
    """True if the installed Thunder is a version that was tried, and none of its sources was changed."""
    return TRIED.get(read_version()) == read_digest()


def read_version() -> str:
    """Returns the version of the Thunder that is installed."""
    import thunder

    return str(getattr(thunder, "__version__", "of no known version"))


def read_own_version() -> str:
    """Returns the version that the installed Thunder says it is.

    Raises:
        ImportError: if it says none.
    """
    from thunder import __version__

    return str(__version__)


def read_digest() -> str:
    """Returns the digest of the installed Thunder's sources; empty if they were changed since they were imported."""
    import thunder

    try:
        return digest_sources(str(Path(str(thunder.__file__)).parent))
    except ValueError:
        return ""


def find_import_problem() -> str:
    """Returns why Thunder cannot be imported; empty if it can."""
    try:
        import thunder  # noqa: F401
    except Exception as error:  # an installed Thunder may fail in many ways
        return f"Thunder cannot be imported: {type(error).__name__}: {error}"
    return ""
