"""What a process of the warm benchmarks measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """A way to start.

    Attributes:
        name: as in ``--ways``.
        store: whether fusioncache keeps what it compiled.
        keeps: whether a second process finds anything.
        enable: of nvFuser's options, by its environment variable.
    """

    name: str
    store: bool
    keeps: bool
    enable: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of its processes."""
        # Whole programs have a benchmark of their own, ``benchmarks/second_process``.
        ours = {"FUSIONCACHE_STORE": str(int(self.store)), "FUSIONCACHE_PROGRAMS": "0"}
        return {**ours, **({"NVFUSER_ENABLE": self.enable} if self.enable else {})}


_ALL = (
    Way("nothing", store=False, keeps=False),
    Way("kernel_db", store=False, keeps=True, enable="kernel_db"),
    Way("store", store=True, keeps=True),
)
WAYS = {way.name: way for way in _ALL}
ONLY_NVFUSER = ("kernel_db",)
"""Its own database of compiled kernels, in the directory for temporary files."""

SECONDS = ("first_step", "compile", "load", "startup")
"""What a process says: its first step, synchronized; of that, compiling and loading; and what was before it."""
