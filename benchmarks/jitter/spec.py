"""What is measured, as the parent process and its workers exchange it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WAYS: Mapping[str, str] = MappingProxyType(
    {
        "thunder": "Thunder without fusioncache",
        "fusioncache": "fusioncache",
        "torch.compile": "torch.compile, with TorchInductor; with --backend eager, with AOTAutograd alone",
    }
)
"""What takes steps."""

BESIDE: Mapping[str, int] = MappingProxyType({"alone": 0, "loader": 2})
"""What runs beside it: so many worker processes of a ``DataLoader`` that makes each step's input."""

SLOWEST = 0.001
"""The share of steps each of which is explained."""
