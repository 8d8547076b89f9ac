"""The ingredient ``variables``: variables of the environment that change what Thunder traces.

What a model's own code asks of the environment is a read of its program, and not here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from fusioncache.backends.torch_settings import read_variables
from fusioncache.ir.key_text import NamedValue

_PREFIXES = ("THUNDER_", "NVFUSER_", "PYTORCH_NVFUSER_")
_HARMLESS = re.compile(r"'(\d{0,4}|true|false|yes|no|on|off)'", re.IGNORECASE)


def read_trace_variables() -> Iterator[NamedValue]:
    """Yields each variable that is set, by name. A value that may be anything is there as its digest."""
    for name, value in read_variables(_PREFIXES, (), ()):
        yield name, value if _HARMLESS.fullmatch(str(value)) else digest_secret(str(value))


def digest_secret(value: str) -> str:
    """Returns a digest in place of a value, which may be a secret."""
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:32]}"
