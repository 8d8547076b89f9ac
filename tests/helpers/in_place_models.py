"""Models that write into their buffers, and an executor whose regions contain the writes."""

import thunder
import torch
from thunder.core import prims
from thunder.extend import ImplInfo

from fusioncache.transform.executor import FusionCacheExecutor


class InPlaceExecutor(FusionCacheExecutor):
    def __init__(self):
        super().__init__("fusioncache")
        self._implmap[prims.PrimIDs.COPY_] = ImplInfo()


class Counters(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        for layer in range(layers):
            self.register_buffer(f"mean{layer}", torch.zeros(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in range(self.layers):
            mean = getattr(self, f"mean{layer}")
            x = torch.tanh(x @ x.T @ x)
            mean.mul_(0.9).add_(x * 0.1)
            x = x + mean
        return x


def run_counters(layers, device, executors, transforms=()):
    torch.manual_seed(0)
    x = torch.randn(4, 6, device=device)
    model = Counters(layers).to(device)
    compiled = thunder.jit(model, executors=executors, transforms=list(transforms))
    results = []
    for _ in range(3):
        results += [compiled(x), *(buffer.clone() for buffer in model.buffers())]
    return results
