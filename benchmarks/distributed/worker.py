"""One rank of ``benchmarks/distributed``: measures one point after the other, each with a line in its answers."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed

from benchmarks.common.counting import Counter, counting_compiles, use_backend
from benchmarks.common.job import enter_job
from benchmarks.distributed.measure import measure
from benchmarks.distributed.shared import share_model
from benchmarks.distributed.spec import PEERS, PointSpec


def main() -> None:
    """Measures what the first argument says, and writes the answers into the folder that the second one names."""
    specs, answers = [PointSpec(**each) for each in json.loads(sys.argv[1])], Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    on_gpu = specs[0].device == "cuda"
    enter_job(specs[0].device)
    use_backend(specs[0].backend)
    distributed.barrier()
    with (answers / f"{rank}.jsonl").open("a") as file:
        for spec in specs:
            if not spec.share_caches:
                _use_own_caches(spec)
            start = time.perf_counter()
            with _counting(spec) as counter:
                shared: Any = share_model(spec, rank, counter)
                found = measure(spec, shared)
            file.write(json.dumps({**found, "all_seconds": time.perf_counter() - start}) + "\n")
            file.flush()
            del shared
            _forget(on_gpu)
    distributed.barrier()
    distributed.destroy_process_group()


def _counting(spec: PointSpec) -> AbstractContextManager[Counter]:
    """Counts what Thunder compiles where it is alone: with a function of ours in it no program would be kept."""
    return counting_compiles(spec.backend) if PEERS[spec.peer].family == "thunder" else nullcontext(Counter())


def _use_own_caches(spec: PointSpec) -> None:
    """Lets each point find nothing of other ones. All ranks of a job share what they find."""
    for variable in ("FUSIONCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        first = os.environ.setdefault(f"{variable}_OF_JOB", os.environ[variable])
        os.environ[variable] = str(Path(first, spec.folder))


def _forget(on_gpu: bool) -> None:
    torch._dynamo.reset()
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
