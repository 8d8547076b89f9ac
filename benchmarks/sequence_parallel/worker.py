"""One rank of ``benchmarks/sequence_parallel``: takes steps at one length after the other."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as distributed

from benchmarks.common.counting import use_backend
from benchmarks.common.job import enter_job
from benchmarks.common.steps import synchronize
from benchmarks.sequence_parallel.model import Shared, share_model
from benchmarks.sequence_parallel.spec import WIDTHS, JobSpec


def main() -> None:
    """Measures what the first argument says, and writes the answers into the folder that the second one names."""
    spec, answers = JobSpec(**json.loads(sys.argv[1])), Path(sys.argv[2])
    enter_job(spec.device)
    use_backend(spec.backend)
    shared = share_model(spec)
    with (answers / f"{os.environ['RANK']}.jsonl").open("a") as file:
        for number, length in enumerate(spec.lengths):
            file.write(json.dumps({"length": length, **measure(spec, shared, number, length)}) + "\n")
            file.flush()
    distributed.barrier()
    distributed.destroy_process_group()


def measure(spec: JobSpec, shared: Shared, number: int, length: int) -> dict[str, Any]:
    """Returns seconds of the first step at a length, milliseconds of later ones, bytes, and counts."""
    torch.manual_seed(number)
    tokens = torch.randint(0, WIDTHS[spec.width].vocabulary, (spec.batch, length), device=spec.device)
    start = _start(spec)
    loss = float(shared.step(tokens))
    synchronize(spec.device)
    first = time.perf_counter() - start
    for _ in range(spec.warmup):
        shared.step(tokens)
    gc.collect()
    if spec.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(spec.steps):
        start = _start(spec)
        shared.step(tokens)
        synchronize(spec.device)
        times.append(1e3 * (time.perf_counter() - start))
    return {
        "loss": loss,
        "first_step": first,
        "step_ms": median(times),
        "fastest_ms": min(times),
        "slowest_ms": max(times),
        "bytes_peak": torch.cuda.max_memory_allocated() if spec.device == "cuda" else None,
        "compiles": shared.compiles(),
        "bypasses": dict(shared.bypasses()),
    }


def _start(spec: JobSpec) -> float:
    """Waits for the other ranks; returns the time."""
    distributed.barrier()
    synchronize(spec.device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
