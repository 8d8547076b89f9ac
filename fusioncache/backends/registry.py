"""What a backend is, and which one is the best here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from fusioncache.ir import Arithmetic, Graph

BACKENDS = ("nvfuser", "inductor", "eager")


class Backend(Protocol):
    """Compiles graphs without parameters for arguments of one layout."""

    name: str

    def environment(self) -> Mapping[str, str]:
        """The ingredients of a key that come from the backend: versions, options, architecture, settings.

        They are those of this moment: settings of torch may change from one compilation to the next.

        Raises:
            Bypass: if nothing that is compiled now may be shared. The reason says what cannot be compared.
        """

    def layout(self, args: Sequence[Any]) -> Hashable:
        """What a compilation depends on, of the arguments' memory layout."""

    def compile(self, graph: Graph, args: Sequence[Any]) -> Any:
        """A function that takes the arguments as one sequence and returns the outputs. Nothing is left to compile."""

    def arithmetic(self, device: str) -> Arithmetic:
        """What the bits of a value in a kernel for this type of device do not depend on."""

    @property
    def keeper(self) -> Any:
        """What keeps compiled code for other processes, if anything: see ``Keeper`` in ``cache/persistence.py``."""

    @property
    def adder(self) -> Callable[..., Any] | None:
        """What sums residual chains in its own way, if anything: see ``Adder`` in ``cache/program.py``."""


def make_backend(name: str, **options: Any) -> Backend:
    """The backend with this name.

    Raises:
        ValueError: if there is none, or if it does not work here; the message says what to do.
    """
    if name == "nvfuser":
        from fusioncache.backends.nvfuser.backend import NvFuser

        return NvFuser(**options)
    if name == "inductor":
        from fusioncache.backends.inductor.backend import Inductor

        return Inductor(**options)
    if name == "eager":
        from fusioncache.backends.eager import Eager

        return Eager()
    raise ValueError(f"unknown backend {name!r}: use 'auto' or one of {', '.join(map(repr, BACKENDS))}")


def best_backend(device: str) -> str:
    """The name of the best backend that works here for regions on this type of device."""
    from fusioncache.backends.nvfuser.backend import nvfuser_problem

    if device == "cuda" and nvfuser_problem() is None:
        return "nvfuser"
    if device == "cuda" or has_cpp_compiler():
        return "inductor"
    return "eager"


def has_cpp_compiler() -> bool:
    """Whether TorchInductor finds what it compiles C++ with."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)
