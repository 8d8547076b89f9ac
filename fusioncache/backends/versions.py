"""The ingredient that names versions."""

from __future__ import annotations

from fusioncache.ir.key_text import NamedValue, write_values


def versions_text(*own: NamedValue) -> str:
    """Returns the ingredient ``versions``: each package whose version changes what is compiled.

    Args:
        own: name and version of each package of the backend. Those of torch and Thunder are added.
    """
    import torch
    from thunder import __version__ as thunder_version

    return write_values([*own, ("torch", torch.__version__), ("thunder", thunder_version)])
