"""Takes training steps of a model with TorchInductor, and prints what came of them as JSON."""

import hashlib
import json
import sys
import warnings

import thunder
import torch
from models import Residual, step

import fusioncache


def main() -> None:
    """The process."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model, x = Residual(2), torch.randn(10, 10)
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="inductor")
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    results = [result.detach().numpy().tobytes() for _ in range(2) for result in step(compiled, model, x)]
    stats = transform.stats()
    found = {
        "digest": hashlib.sha256(b"".join(results)).hexdigest(),
        "compiles": stats.compiles,
        "loads": stats.loads,
        "programs": [stats.programs_loaded, stats.programs_made],
        "unkept": dict(stats.unkept),
        "bypasses": dict(stats.bypasses),
        "compiler": "torch._inductor.codegen.cpp" in sys.modules,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
