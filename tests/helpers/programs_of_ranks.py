"""Models that ranks share in several ways, run with a store: what is counted of their programs, and what they give."""

import os
import re
from pathlib import Path
from typing import Any

import thunder
import torch
from sharded_training import device_of, share

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.distributed.cut_layers import TensorParallelTransform
from fusioncache.observe.record.observations import PlacementRecord

MODES = ("zero2", "zero3", "ddp", "layers", "rows")
WIDTH = 6


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(12, WIDTH)
        self.gate, self.up = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x + self.down(torch.relu(self.gate(x)) * self.up(x))


def share_small(mode: str, group: Any = None) -> Any:
    """Shares the model in one way, with a cache of its own over the store of the directory."""
    on_gpus = torch.distributed.get_backend() == "nccl"
    model = Small().to("cuda" if on_gpus else "cpu")
    cache = fusioncache.Cache(record=False)
    options = {"cache": cache, "backend": "auto" if on_gpus else "eager", "jobs": 0, "programs": True}
    if mode in ("layers", "rows"):
        layers: dict[str, Any] = {"column": ("embedding", "gate", "up"), "row": ("down",)}
        return distributed.tensor_parallel(model, group, sequence=mode == "rows", **layers, **options)
    transforms = [fusioncache.FusionCache(**options)]
    return share(thunder.jit(model, executors=fusioncache.executors(), transforms=transforms), mode)


def run(rank: int, jitted: Any) -> dict[str, Any]:
    """Runs two steps. Each rank has data of its own where the model is shared by its batch."""
    cut = any(isinstance(one, TensorParallelTransform) for one in jitted._lc_transforms)
    tokens = torch.arange(12, device=device_of(jitted)).reshape(2, 6) + (0 if cut else rank)
    values = []
    for _ in range(2):
        result = jitted(tokens % 12)
        result.square().sum().backward()
        values += [result.detach().cpu(), *(parameter.grad.cpu() for parameter in jitted.parameters())]
        for parameter in jitted.parameters():
            parameter.grad = None
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    stats = transform.stats()
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    return {
        "values": values,
        "counts": (stats.programs_made, stats.programs_loaded),
        "refused": dict(stats.programs_refused),
        "placed": [len(one.flights) for one in transform.cache.ledger.history.records(PlacementRecord)],
        "calls": [list_functions(trace) for trace in traces],
    }


def run_lengths(jitted: Any) -> dict[str, int]:
    """Runs three lengths; returns why each but the first is interpreted, and how often."""
    for length in (5, 4, 3):  # the store has 6
        jitted(torch.arange(2 * length, device=device_of(jitted)).reshape(2, length) % 12)
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return dict(transform.stats().programs_interpreted)


def list_functions(trace: Any) -> list[str]:
    """Returns the names of the functions that a trace calls, in order; a loaded trace has a text alone."""
    body = trace.python().partition("\ndef ")[2].splitlines()[1:]
    found = (re.match(r"\s+(?:[^#(]* = )?([\w.]+)\(", line) for line in body)
    return [call[1] for call in found if call]


def run_all(rank: int, folder: Path) -> dict[str, Any]:
    os.environ["FUSIONCACHE_DIR"], os.environ["FUSIONCACHE_STORE"] = str(folder), "1"
    return {mode: run(rank, share_small(mode)) for mode in MODES}
