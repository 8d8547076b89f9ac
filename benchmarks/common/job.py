"""Jobs of several ranks under torchrun that return answers while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from benchmarks.common import processes
from benchmarks.common.processes import ProcessFailed, find_function

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_LIMIT = timedelta(seconds=180)
"""Timeout of a collective. A rank that exceeds it ends its job."""
_LOG = 3000
"""Number of characters of a failed job's log that are reported."""
_WAIT = 0.2


def run_job(
    target: str,
    argument: Any,
    ranks: int,
    *,
    limit: float | None = None,
    caches: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[list[Any]]:
    """Yields a list with one answer of each rank, as soon as all ranks have given theirs.

    Args:
        target: a function, as for ``processes.call``, that yields answers. It gets the argument and its rank.
        argument: of the function, as JSON. Its ``device`` selects NCCL or gloo.
        ranks: number of processes.
        limit: the seconds after which the job is ended.
        caches: a folder for the caches of compilers, which is not removed; by default a temporary one.
        environment: additional environment variables of the ranks.

    Raises:
        benchmarks.common.processes.ProcessFailed: if the job failed, or was ended.
    """
    with TemporaryDirectory(prefix="fusioncache-job-", ignore_cleanup_errors=True) as directory:
        answers, log = Path(directory, "answers"), Path(directory, "log")
        answers.mkdir()
        command = [*_TORCHRUN, f"--nproc-per-node={ranks}", "-m", "benchmarks.common.job", target]
        variables = {**processes.environment_in(str(caches or directory)), "OMP_NUM_THREADS": "1", **environment}
        with log.open("wb") as output:
            job = subprocess.Popen(
                [*command, json.dumps(argument), str(answers)],
                cwd=processes.ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                late = yield from _follow(job, answers, ranks, limit)
            finally:
                job.terminate()  # torchrun ends its ranks
                job.wait()
        if late:
            raise ProcessFailed(f"the job was ended after {limit:.0f} s", "")
        if job.returncode:
            raise ProcessFailed("the job failed", log.read_text(errors="replace")[-_LOG:])


def _follow(
    job: subprocess.Popen[bytes], answers: Path, ranks: int, limit: float | None
) -> Generator[list[Any], None, bool]:
    """Yields answers until the job ends or exceeds its limit. Returns whether it exceeded it."""
    begun, done = time.monotonic(), 0
    while True:
        ended, late = job.poll() is not None, limit is not None and time.monotonic() - begun > limit
        for found in read_answers(answers, ranks, done):
            done += 1
            yield found
        if ended or late:
            return not ended
        time.sleep(_WAIT)


def read_answers(answers: Path, ranks: int, done: int) -> list[list[Any]]:
    """Returns the complete answers of all ranks after the first ``done``, which were read before."""
    files = [answers / f"{rank}.jsonl" for rank in range(ranks)]
    lines = [file.read_text().splitlines(keepends=True) if file.exists() else [] for file in files]
    whole = min(sum(line.endswith("\n") for line in each) for each in lines)
    return [[json.loads(each[number]) for each in lines] for number in range(done, whole)]


def enter_job(device: str) -> None:
    """Joins the process group of the ranks: NCCL with one GPU for each rank, or gloo with one thread.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
    """
    import torch
    import torch.distributed as distributed

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        own = torch.device("cuda", torch.cuda.current_device())
        distributed.init_process_group("nccl", timeout=_LIMIT, device_id=own)
    else:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", timeout=_LIMIT)


def _answer() -> None:
    """Runs the function as one rank, and writes a line for each answer that it yields."""
    import torch.distributed as distributed

    target, argument, answers = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    rank = int(os.environ["RANK"])
    enter_job(argument["device"])
    with (answers / f"{rank}.jsonl").open("a") as file:
        for answer in find_function(target)(argument, rank):
            file.write(json.dumps(answer) + "\n")
            file.flush()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    _answer()
