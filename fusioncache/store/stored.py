"""What a load finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Stored(Mapping[str, bytes]):
    """Artifacts by the backend's names for them, and what they cost. Equal to any mapping with the same artifacts.

    Attributes:
        artifacts: by name.
        seconds: that compiling took, where it was compiled. A load saves that.
    """

    artifacts: Mapping[str, bytes]
    seconds: float = 0.0

    def __getitem__(self, name: str) -> bytes:
        return self.artifacts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.artifacts)

    def __len__(self) -> int:
        return len(self.artifacts)
