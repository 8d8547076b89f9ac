"""One process of ``benchmarks/warm_start``."""

from __future__ import annotations

import time

_START = time.perf_counter()

from benchmarks.common.processes import serve  # noqa: E402
from benchmarks.common.spec import ModelSpec  # noqa: E402
from benchmarks.common.training import measure  # noqa: E402

if __name__ == "__main__":
    serve(lambda options: measure(ModelSpec(**options), _START))
