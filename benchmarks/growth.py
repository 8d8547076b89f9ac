"""What each further length adds to a process's memory, to the record and to the store.

Small blocks of attention are trained at sizes that are new each time, on a CPU and with the eager backend, so that no
compiler's memory is among the figures, and all sizes are small. After so many lengths the process says its resident
memory and the bytes of its files; another process says the bytes that Python allocated since the first length. Thunder
alone, which holds each entry for ever, is set beside it for fewer lengths, as it takes seconds for each.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from benchmarks.common.options import Numbers
from benchmarks.common.runner import Point, Run, benchmark, pick

_SIZES = ("resident", "allocated", "record", "store")
WIDTH = 32
_ROWS, _LENGTHS = 31, 37
"""How many rows and lengths there are: 1147 pairs, all of them small, so that memory is not that of tensors."""


class Block(nn.Module):
    """Attention with one head, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the residual stream behind the block."""
        normed = self.norm(x)
        scores = self.query(normed) @ self.key(normed).transpose(-1, -2) * WIDTH**-0.5
        x = x + self.out(torch.softmax(scores, -1) @ self.value(normed))
        return x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))


def measure(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Returns sizes in bytes after each number of lengths that is asked for."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block() for _ in range(argument["blocks"])))
    compiled, save = _compile(argument["way"], model)
    points = []
    for number in range(max(argument["lengths"])):
        compiled(torch.randn(2 + number % _ROWS, 8 + number % _LENGTHS, WIDTH)).sum().backward()
        model.zero_grad(set_to_none=True)
        if number == 0 and argument["traces"]:
            tracemalloc.start()
        if number + 1 in argument["lengths"]:
            save()
            gc.collect()
            points.append({"lengths": number + 1, **_measure(traces=argument["traces"])})
    return {"points": points}


def _compile(way: str, model: nn.Module) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], None]]:
    """Returns the compiled model, and what brings files up to date that are written beside the steps."""
    import thunder

    import fusioncache

    if way == "thunder":  # its entries alone: what compilers hold is no business of its
        return thunder.jit(model, executors=[]), lambda: None
    transform = fusioncache.FusionCache(backend="eager", jobs=0)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    return compiled, transform.cache.write_record


def _measure(*, traces: bool) -> dict[str, int]:
    if traces:
        return {"allocated": tracemalloc.get_traced_memory()[0]}
    directory = Path(os.environ["FUSIONCACHE_DIR"])
    sizes = {file: file.stat().st_size for file in directory.rglob("*") if file.is_file()}
    record = sum(size for file, size in sizes.items() if file.name.startswith("record-"))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGESIZE"),
        "record": record,
        "store": sum(sizes.values()) - record,
    }


@benchmark(__doc__, "eager")
@click.option("--blocks", type=Numbers(), default=(2, 12), help="As in 2,12: of each model.")
@click.option("--lengths", type=Numbers(), default=(10, 100, 1000), help="After how many lengths to measure.")
@click.option("--thunder", type=Numbers(), default=(5, 10), help="The same for Thunder alone.")
def main(run: Run, blocks: tuple[int, ...], lengths: tuple[int, ...], thunder: tuple[int, ...]) -> None:
    """Runs the benchmark."""
    for count in blocks:
        for way, after in (("fusioncache", lengths), ("thunder", thunder)):
            run.keep(*_ask(run, way, count, after))
    columns = {"<way": pick("way"), "blocks": pick("blocks"), "lengths": pick("lengths")}
    sizes = {f"{size}, MB": _pick_size(size) for size in _SIZES}
    run.finish("after so many lengths", {**columns, **sizes})


def _pick_size(size: str) -> Callable[[Point], str]:
    return lambda point: f"{point[size] / 1e6:.2f}"


def _ask(run: Run, way: str, blocks: int, lengths: tuple[int, ...]) -> list[Point]:
    """Returns a point for each number of lengths."""
    about = {"way": way, "blocks": blocks}
    asked = {**about, "lengths": lengths}
    said = [run.ask(about, "benchmarks.growth:measure", {**asked, "traces": traces}) for traces in (False, True)]
    if any("error" in one for one in said):
        return [one for one in said if "error" in one]
    found, traced = (one["points"] for one in said)
    return [{**about, **one, **other} for one, other in zip(found, traced, strict=True)]


if __name__ == "__main__":
    main()
