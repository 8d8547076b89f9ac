"""Takes training steps of a model whose regions Thunder gives to nvFuser, and prints the results as JSON.

On ``cpu`` Thunder's real nvFuser executor accepts CPU tensors, and its regions run op by op.
"""

import hashlib
import importlib
import json
import sys
import types
from typing import Any

import torch
from fake_cuda import find_nvfuser_executor, pretend_gpu
from models import Blocks, step


def take_steps(device: str, *, graphs: bool = False, **options: Any) -> dict[str, Any]:
    """Returns a digest of three steps' results, counts, and the number of programs that Thunder derived."""
    import thunder

    import fusioncache

    torch.manual_seed(0)
    model, x = Blocks(1).to(device), torch.randn(5, 16, device=device)
    backend = "eager" if device == "cpu" else "auto"
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend=backend, graphs=graphs)
    compiled = thunder.jit(model, transforms=[transform], **options)
    results = [result.detach().cpu().numpy().tobytes() for _ in range(3) for result in step(compiled, model, x)]
    stats = transform.stats()
    return {
        "digest": hashlib.sha256(b"".join(results)).hexdigest(),
        "regions": stats.regions,
        "derived": thunder.cache_misses(compiled),
        "compiles": stats.compiles,
        "captures": stats.captures,
        "programs": [stats.programs_loaded, stats.programs_made],
        "left": dict(stats.bypasses) | dict(stats.unkept) | dict(stats.programs_refused),
    }


if __name__ == "__main__":
    if sys.argv[1] == "cuda":
        FOUND = take_steps("cuda", graphs="--graphs" in sys.argv)
    else:
        EXECUTOR = find_nvfuser_executor()
        nvfuserex_impl = importlib.import_module("thunder.executors.nvfuserex_impl")
        # The executor looks up the device type by this name.
        nvfuserex_impl.DeviceType = types.SimpleNamespace(CUDA=nvfuserex_impl.DeviceType.CPU)
        with pretend_gpu():
            FOUND = take_steps("cpu", executors=[EXECUTOR])
    print(json.dumps(FOUND))
