"""The ingredient that names versions."""

from __future__ import annotations


def versions_text(*own: str) -> str:
    """A line for each package whose version changes what is compiled: a backend's own, torch, and Thunder.

    Args:
        own: name and version of each package of the backend.
    """
    import torch
    from thunder import __version__ as thunder_version

    return "\n".join([*own, f"torch {torch.__version__}", f"thunder {thunder_version}"])
