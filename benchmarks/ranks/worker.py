"""One rank of ``benchmarks/ranks``. All ranks start their first step at the same moment."""

from __future__ import annotations

import time

_START = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402

from benchmarks.common.spec import ModelSpec  # noqa: E402
from benchmarks.common.training import measure  # noqa: E402


def main() -> None:
    """Measures what the first argument says, and writes the answer into the folder that the second one names."""
    given, answers = json.loads(sys.argv[1]), Path(sys.argv[2])
    spec, rank = ModelSpec(**given["spec"]), int(os.environ["RANK"])
    if given["separate"]:
        os.environ["FUSIONCACHE_DIR"] = os.path.join(os.environ["FUSIONCACHE_DIR"], f"rank{rank}")
    if spec.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if spec.device == "cuda" else "gloo")
    found = measure(spec, _START, _wait_for_all)
    (answers / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def _wait_for_all() -> None:
    distributed.barrier()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
