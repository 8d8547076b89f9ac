"""What the text of a trace may consist of: imports of reviewed packages, decorators, and one function."""

from __future__ import annotations

import re

from fusioncache.ir.strict_json import is_text

REVIEWED = frozenset(
    {"builtins", "cmath", "fusioncache", "math", "numbers", "nvfuser_direct", "operator", "thunder", "torch"}
)
"""The packages whose modules may be imported, and whose functions may be called, because a stored program says so."""

_IMPORT = re.compile(r"import ([\w.]+)(?: as \w+)?|from ([\w.]+) import \w+")
_DECORATORS = frozenset({"@torch.no_grad()", "@no_autocast"})


def is_reviewed(module: str) -> bool:
    """Tells whether a module belongs to a package that stored programs may use."""
    return module.partition(".")[0] in REVIEWED


def check_source(name: str, source: str) -> None:
    """Checks that a source is the function of this name, and imports reviewed packages only.

    Raises:
        ValueError: if it is anything else. The error says what.
    """
    if not is_text(source):
        raise ValueError("has a text that is not Unicode")
    head, found, body = f"\n{source}".partition(f"\ndef {name}(")
    if not found:
        raise ValueError(f"has no function {name}")
    for line in head.split("\n"):
        _check_head(line)
    signature, _, statements = body.partition("\n")
    inside = all(line.startswith("  ") or not line for line in statements.split("\n"))
    if not signature.endswith("):") or not statements or not inside:
        raise ValueError(f"has something else than the function {name}")


def _check_head(line: str) -> None:
    imported = _IMPORT.fullmatch(line)
    if imported is None:
        if line and not line.startswith("#") and line not in _DECORATORS:
            raise ValueError(f"has the line {line!r} before its function")
    elif not is_reviewed(imported[1] or imported[2]):
        raise ValueError(f"imports {imported[1] or imported[2]}, which stored programs may not use")
