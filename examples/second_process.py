"""Runs one model in two processes: the first one compiles, the second one loads what the first one left.

    python examples/second_process.py

The store is in a temporary directory here, so that the first process finds nothing. Without FUSIONCACHE_DIR it is in
the cache directory of the user, and the second process is whichever comes next.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory


def run_model() -> None:
    """What each of the processes does: a forward and a backward pass of four equal layers."""
    import thunder
    import torch

    import fusioncache

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Tanh()) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    transform = fusioncache.FusionCache()
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])

    start = time.perf_counter()
    compiled(torch.randn(8, 64, device=device)).sum().backward()
    seconds = time.perf_counter() - start
    stats = transform.stats()
    print(f"{stats.regions} regions, {stats.compiles} compiles, {stats.loads} loads: first step in {seconds:.1f} s")


def main() -> None:
    """Runs this file twice, with one store for both."""
    with TemporaryDirectory() as directory:
        for process in ("first", "second"):
            print(f"the {process} process: ", end="", flush=True)
            environment = {**os.environ, "FUSIONCACHE_DIR": directory}
            subprocess.run([sys.executable, Path(__file__), "run"], env=environment, check=True)


if __name__ == "__main__":
    run_model() if sys.argv[1:] == ["run"] else main()
