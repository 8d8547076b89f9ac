"""The ``train.py`` of a recipe: compiles a small model, and prints the counts of compilations and its result."""

import thunder
import torch

import fusioncache
from fusioncache.store import read_through


def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + torch.cos(x)


if __name__ == "__main__":
    read_through.WAIT_SECONDS = 60.0  # a busy machine is no slow remote
    cache = fusioncache.Cache(store=True)
    transform = fusioncache.FusionCache(cache=cache, backend="inductor", jobs=0)
    compiled = thunder.jit(wave, executors=fusioncache.executors(), transforms=[transform])
    total = compiled(torch.arange(32.0).reshape(4, 8)).sum().item()
    stats = cache.stats()
    print(stats.compiles, stats.programs_made, dict(stats.pulled), dict(stats.pull_refused), total)
