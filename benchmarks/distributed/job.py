"""Jobs of several ranks that measure one point after the other, and go on behind one that fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import processes
from benchmarks.common.results import Point, say
from benchmarks.distributed.spec import PointSpec

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_WORKER = "benchmarks.distributed.worker"
_LOG = 3000
"""How many characters of a failed job's log are kept."""
_WAIT = 0.2


def run_job(specs: Sequence[PointSpec], ranks: int, deadline: float, caches: Path | None = None) -> Iterator[Point]:
    """Yields what the ranks say of each point, as soon as they do. One that fails is followed by a new job.

    Args:
        specs: the points, of one family.
        ranks: how many processes there are.
        deadline: when no more is measured, by ``time.monotonic``.
        caches: a folder for what is compiled, which stays; not given: one for each job.
    """
    left = list(specs)
    while left and time.monotonic() <= deadline:
        done, log = 0, ""
        with TemporaryDirectory(prefix="fusioncache-distributed-", ignore_cleanup_errors=True) as directory:
            for item in start_ranks(left, ranks, Path(directory), deadline, caches):
                if isinstance(item, str):
                    log = item
                    continue
                yield _report({**asdict(left[done]), "ranks": item})
                done += 1
        if done < len(left):
            late = "no time was left" if time.monotonic() > deadline else ""
            yield _report({**asdict(left[done]), "error": late or log or "the job ended before"})
            done += 1
        left = left[done:]
    yield from (_report({**asdict(spec), "error": "no time was left"}) for spec in left)


def start_ranks(
    specs: Sequence[PointSpec], ranks: int, folder: Path, deadline: float, caches: Path | None
) -> Iterator[list[dict[str, Any]] | str]:
    """Yields for each point what each rank says, and in the end what the job printed."""
    answers, log = folder / "answers", folder / "log"
    answers.mkdir()
    argument = json.dumps([asdict(spec) for spec in specs])
    command = [*_TORCHRUN, f"--nproc-per-node={ranks}", "-m", _WORKER, argument, str(answers)]
    caches = folder if caches is None else caches
    environment = {**processes.environment_in(str(caches)), "OMP_NUM_THREADS": "1", **specs[0].variables}
    done = 0
    with log.open("wb") as output:
        job = subprocess.Popen(
            command, cwd=processes.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            ended = False
            while not ended:
                ended = job.poll() is not None or time.monotonic() > deadline
                for found in _read(answers, ranks, done):
                    done += 1
                    yield found
                time.sleep(0 if ended else _WAIT)
        finally:
            job.terminate()  # torchrun ends its ranks
            job.wait()
    yield log.read_text(errors="replace")[-_LOG:]


def _read(answers: Path, ranks: int, done: int) -> list[list[dict[str, Any]]]:
    """Returns the answers of all ranks to each point behind those that are done."""
    files = [answers / f"{rank}.jsonl" for rank in range(ranks)]
    lines = [file.read_text().splitlines(keepends=True) if file.exists() else [] for file in files]
    whole = min(sum(line.endswith("\n") for line in each) for each in lines)
    return [[json.loads(each[number]) for each in lines] for number in range(done, whole)]


def _report(point: Point) -> Point:
    name = str(PointSpec(**{key: value for key, value in point.items() if key not in ("ranks", "error")}))
    if "error" in point:
        say(f"{name}: failed\n{point['error']}\n")
    else:
        steps = ", ".join(f"{rank['step_ms']:.1f}" for rank in point["ranks"])
        say(f"{name}: step {steps} ms, first {max(rank['first_step'] for rank in point['ranks']):.1f} s\n")
    return point
