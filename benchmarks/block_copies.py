"""What copying blocks that are alike saves of a first training step: its processor seconds with it and without it.

A narrow Llama on a CPU, forward and backward, regions op by op, one thread; each step in a process of its own with
empty caches. LAYERS are depths of the model, by default 8, 16 and 32.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import command, json_option, repeat_option
from benchmarks.common.results import Point, make_result, write_result

_COMMON = "import sys; sys.path.insert(0, sys.argv[1]); from benchmarks.block_copies import take_step; "


def take_step(layers: int, *, copies: bool) -> float:
    """Returns the processor seconds of a first step, in a process that has taken none."""
    import thunder
    import torch
    from litgpt import GPT, Config

    from benchmarks.common.spec import NARROW
    from benchmarks.common.thunder_jit import executors
    from fusioncache import FusionCache
    from fusioncache.accelerators import registry
    from fusioncache.thunder_adapter import installation

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, heads, inner, words = NARROW["cpu"]
    sizes = {"n_embd": width, "n_head": heads, "intermediate_size": inner, "padded_vocab_size": words}
    model = GPT(Config.from_name("Llama-2-7b-hf", n_layer=layers, block_size=128, vocab_size=words, **sizes))
    tokens = torch.randint(0, words, (2, 64))
    if not copies:
        shortcuts = [name for name in installation.TRACING if name != "layers"]
        registry.install = partial(installation.install, shortcuts)  # type: ignore[attr-defined]
    cache = FusionCache(backend="eager")
    start = time.process_time()
    compiled = thunder.jit(model, executors=executors("eager"), transforms=[cache])
    torch.nn.functional.cross_entropy(compiled(tokens).flatten(0, 1), tokens.flatten()).backward()
    return time.process_time() - start


def measure(layers: int, *, copies: bool) -> float:
    """Returns the processor seconds of a first step in a fresh process."""
    with TemporaryDirectory() as directory:
        code = f"{_COMMON}print(take_step({layers}, copies={copies}))"
        command = [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).resolve().parents[1])]
        done = subprocess.run(
            command, env={**os.environ, "FUSIONCACHE_DIR": directory}, stdout=subprocess.PIPE, check=True
        )
    return float(done.stdout.split()[-1])


@command(__doc__)
@click.argument("layers", type=click.IntRange(min=1), nargs=-1)
@repeat_option("Pairs of processes; the medians count.", default=3)
@json_option
def main(json_file: Path | None, layers: tuple[int, ...], repeat: int) -> None:
    """Runs the benchmark."""
    points: list[Point] = []
    machine = inspect_machine("eager")
    for depth in layers or (8, 16, 32):
        pairs = [(measure(depth, copies=True), measure(depth, copies=False)) for _ in range(repeat)]
        with_, without = (median(each) for each in zip(*pairs, strict=True))
        click.echo(
            f"{depth} layers: {with_:.2f} s with copies, {without:.2f} s without, {1 - with_ / without:.0%} less"
        )
        points.append({"layers": depth, "with": with_, "without": without, "pairs": pairs})
        write_result(json_file, make_result(machine.environment, {"repeat": repeat}, points=points))


if __name__ == "__main__":
    main()
