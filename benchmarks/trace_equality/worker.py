"""One model in a process of its own: traced by Thunder alone, then with each set of groups of shortcuts, and compared.

The first tracing of a process pays what is paid once, so that its seconds say less than those of ``none, again``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from benchmarks import zoo
from benchmarks.common.counting import use_backend
from benchmarks.common.processes import serve
from benchmarks.common.thunder_jit import executors
from benchmarks.trace_equality.pieces import Piece, find_pieces
from benchmarks.trace_equality.recorded import recording
from benchmarks.trace_equality.spec import Spec, name_sets
from benchmarks.trace_equality.texts import digest, find_difference
from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING

Texts = dict[str, str]


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Traces a model without and with shortcuts, and returns what was found."""
    spec = Spec(**options)
    use_backend(spec.backend)
    workload = zoo.make(spec.model, spec.layers, spec.device, spec.dtype)
    pieces = find_pieces(workload, executors(spec.backend))
    seconds: dict[str, float] = {}
    own, seconds["none"] = trace(pieces, ())
    differing = {}
    for name, groups in name_sets(spec.kinds, tuple(TRACING)):
        found, seconds[name] = trace(pieces, groups)
        difference = find_difference(own, found)
        if difference:
            differing[name] = asdict(difference)
    return {
        "layers": workload.layers,
        "way": workload.way,
        "pieces": len(pieces),
        "traces": len(own),
        "lines": sum(text.count("\n") for text in own.values()),
        "digest": digest(own),
        "compared": [name for name in seconds if name != "none"],
        "differing": differing,
        "cpu_seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def trace(pieces: Sequence[Piece], groups: Sequence[str]) -> tuple[Texts, float]:
    """Returns the texts of all traces with these groups of shortcuts, and the processor's seconds that it took.

    With shortcuts they are recorded, as where programs are kept. A trace that cannot be made has the error in place of
    its text.
    """
    tracing.uninstall()
    tracing.install(groups)
    try:
        start = time.process_time()
        with recording() if groups else nullcontext():
            texts = {f"piece {n}, {name}": text for n, piece in enumerate(pieces, 1) for name, text in _trace(piece)}
        return texts, time.process_time() - start
    finally:
        tracing.uninstall()


def _trace(piece: Piece) -> list[tuple[str, str]]:
    try:
        return list(piece.trace().items())
    except Exception as error:
        return [("error", f"{type(error).__name__}: {error}")]


if __name__ == "__main__":
    serve(measure)
