"""The backends by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from fusioncache.backends.api import Backend, Description

BACKENDS: Mapping[str, str] = {
    "nvfuser": "fusioncache.backends.nvfuser.backend:NvFuser",
    "inductor": "fusioncache.backends.inductor.backend:Inductor",
    "eager": "fusioncache.backends.eager:Eager",
}
"""Where the class of each backend is. The best is first, and the last works everywhere."""


def backend_class(name: str) -> type[Backend]:
    """Returns the class of the backend with this name. That imports neither torch nor a compiler.

    Raises:
        ValueError: if there is none; the message says which there are.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: use 'auto' or one of {', '.join(map(repr, BACKENDS))}")
    module, _, class_ = BACKENDS[name].partition(":")
    return cast(type[Backend], getattr(import_module(module), class_))


def make_backend(name: str, **options: Any) -> Backend:
    """Makes the backend with this name.

    Raises:
        ValueError: if there is none, or if it does not work here; the message says what to do.
        TypeError: if it takes no such options.
    """
    return backend_class(name)(**options)


def problem(name: str, device: str) -> str | None:
    """Tells why a backend does not work here for regions on this type of device, and what to do; None if it does."""
    return backend_class(name).problem(device)


def best_backend(device: str) -> str:
    """Returns the name of the best backend that works here for regions on this type of device."""
    return next(name for name in BACKENDS if problem(name, device) is None)


def describe(name: str, artifacts: Mapping[str, bytes]) -> Description:
    """Describes what a backend persisted. Of a backend that is not known here nothing is known."""
    return backend_class(name).describe(artifacts) if name in BACKENDS else Description()
