"""Models behind Dynamo, with regions that run op by op."""

import torch

import fusioncache


class OwnNet(torch.nn.Module):
    """Thunder lacks ``sinc``, and Dynamo ends a graph where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sinc(self.linear(x)) * 2.0
        torch._dynamo.graph_break()
        return torch.tanh(y + self.linear(x))


def compile_behind_dynamo(model, store=False, graphs=False, record=False, backend="eager", **options):
    from thunder.dynamo import thunderfx

    torch._dynamo.reset()
    cache = fusioncache.Cache(store=store, record=record)
    transform = fusioncache.FusionCache(cache=cache, backend=backend, graphs=graphs)
    return thunderfx(model, executors=fusioncache.executors(), transforms=[transform], **options), transform
