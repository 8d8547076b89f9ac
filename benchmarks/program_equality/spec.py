"""What the processes of the comparison of programs have to do. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

THUNDER, FIRST, SECOND = "thunder", "first", "second"
"""The processes: Thunder without fusioncache, one that keeps the programs that it derives, one that loads them."""

HASH_SEEDS: Mapping[str, str] = MappingProxyType({THUNDER: "0", FIRST: "1", SECOND: "2"})
"""``PYTHONHASHSEED`` of each: sets of strings have another order in each process."""

STEPS = 3
