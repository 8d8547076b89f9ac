"""Makes TorchInductor probe the CPU's vector instructions as ``backends/inductor/joined_kernels.py`` does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.backends.inductor.joined_kernels import can_use
from fusioncache.thunder_adapter.installation import install_more

logger = logging.getLogger("fusioncache")


def share_vector_probes() -> None:
    """Makes TorchInductor probe vector instructions once on a machine, not in each process. Never raises."""
    install_more("vector probes")


def replace_probe(original: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    """Returns a probe that calls the original only if fusioncache's fails."""

    @wraps(original)
    def check_build(self: Any, code: str) -> bool:
        try:
            return can_use(self, code)
        except Exception as error:  # any: TorchInductor probes instead
            logger.info("probing the CPU for %s failed", self, exc_info=error)
            return original(self, code)

    return check_build
