"""The option ``sizes``, and where a region comes from: what decides which regions are generalized with which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusioncache.process.settings import SIZES


class Sizes(Enum):
    """When regions that differ only in sizes and numbers share one compilation.

    ``AUTO``: from the second program of a function on, where it is like one of an earlier program of the same function.
    ``DYNAMIC``: wherever they come from. ``STATIC``: never.
    """

    AUTO = "auto"
    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class Generation:
    """One program of a function: what Thunder made of it for one kind of input.

    Attributes:
        function: stands for the function; compared by identity.
        number: counts the programs of the function.
        name: of the function, by which a later process knows it; empty if there is none.
    """

    function: object
    number: int
    name: str = ""


def choose_sizes(sizes: str | None) -> Sizes:
    """Chooses what to do with sizes, by the option of ``FusionCache``; if that is None, by the environment.

    Raises:
        ValueError: if the option or the environment is none of auto, static and dynamic.
    """
    if sizes is None:
        return Sizes(SIZES.read() or Sizes.AUTO.value)
    if sizes not in [known.value for known in Sizes]:
        raise ValueError(f"sizes must be 'auto', 'static' or 'dynamic', got {sizes!r}")
    return Sizes(sizes)
