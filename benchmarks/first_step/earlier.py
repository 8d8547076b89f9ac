"""One point of ``benchmarks/first_step`` with an earlier state of the code, run in that state's root by its path.

That state's own worker measures its phases, as at commit 174f39c, which the goals name: ``trace`` is added here, up to
the first call of the prologue, as today's worker has it. Nothing of today's code is imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

_WORKER = "benchmarks.first_step_worker"


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of each phase and part, for what that state takes as the options of a point."""
    import thunder

    worker: Any = import_module(_WORKER)
    compiled: list[Any] = []
    own = thunder.jit

    def jit(*args: Any, **kwargs: Any) -> Any:
        compiled.append((time.perf_counter(), own(*args, **kwargs)))
        return compiled[-1][1]

    thunder.jit = jit
    seconds = dict(worker.measure(options))
    start, last = compiled[-1]
    trace = thunder.compile_stats(last).last_prologue_execution_start / 1e9 - start
    return seconds | {"trace": trace, "after_trace": seconds["total"] - trace}


if __name__ == "__main__":
    import_module("benchmarks.processes").serve(measure)
