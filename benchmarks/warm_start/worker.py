"""One process of ``benchmarks/warm_start.py``."""

from __future__ import annotations

import time

_START = time.perf_counter()

from collections.abc import Mapping  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks.common.processes import serve  # noqa: E402
from benchmarks.common.training import measure  # noqa: E402
from benchmarks.scaling.spec import Spec  # noqa: E402


def _answer(options: Mapping[str, Any]) -> dict[str, Any]:
    return measure(Spec(**options), _START)


if __name__ == "__main__":
    serve(_answer)
