"""Small models that tests compile, and functions that compile them and examine the results."""

from typing import Any

import torch

import fusioncache
from benchmarks.common.rematerialization import recompute_sums as recompute  # noqa: F401 for tests


class Residual(torch.nn.Module):
    """The model of NVIDIA/Fuser#2916: two residual branches a layer, norm = tanh, attention = mlp = weight @ x."""

    def __init__(self, layers, size=10):
        super().__init__()
        weights = [torch.randn(size, size) * 0.3 / size**0.5 for _ in range(2 * layers)]
        self.weights = torch.nn.ParameterList(map(torch.nn.Parameter, weights))

    def forward(self, x):
        for weight in self.weights:
            x = x + weight @ torch.tanh(x)
        return x


class Block(torch.nn.Module):
    """A transformer block's elementwise parts: RMS norm, gated MLP, residual adds, dropout-free."""

    def __init__(self, size: int = 16):
        super().__init__()
        self.norm = torch.nn.RMSNorm(size)
        self.gate, self.up, self.down = (torch.nn.Linear(size, size, bias=bias) for bias in (True, False, True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(normed)) * self.up(normed))


class Blocks(torch.nn.Module):
    def __init__(self, layers: int, size: int = 16):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block(size) for _ in range(layers)))
        self.head = torch.nn.Linear(size, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


class Small(torch.nn.Module):
    """A model with two regions in each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.linear(torch.tanh(self.linear(x)) * 2)) + x


def curve(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def find_fused(trace: Any) -> list[Any]:
    return [symbol for symbol in trace.bound_symbols if symbol.sym.is_fusion]


def find_all_fused(compiled):
    import thunder

    backward = thunder.last_backward_traces(compiled)
    return [*find_fused(thunder.last_traces(compiled)[-1]), *(find_fused(backward[-1]) if backward else [])]


def step(compiled: Any, model: torch.nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Runs a forward and a backward pass; returns the output, then every gradient."""
    model.zero_grad()
    output = compiled(*inputs)
    output.sum().backward()
    return [output.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def take_token_step(compiled: Any, model: torch.nn.Module, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Returns copies of the loss and all gradients on a GPU, in float32; the model predicts each token itself."""
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(compiled(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    torch.cuda.synchronize()
    gradients = [each.grad.clone() if each.grad is not None else torch.zeros_like(each) for each in model.parameters()]
    return [loss.detach(), *(gradient.float() for gradient in gradients)]


def are_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def compile_with(
    model: Any, backend: str = "eager", cache: fusioncache.Cache | None = None, **options: Any
) -> tuple[Any, fusioncache.FusionCache]:
    """Compiles a model with fusioncache, by default over a new cache. Returns it and its transform."""
    import thunder

    cache = fusioncache.Cache() if cache is None else cache
    transform = fusioncache.FusionCache(cache=cache, backend=backend, **options)
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), transform


def compile_plain(model: Any) -> Any:
    """Compiles a model with Thunder and without a transform; fusioncache's executor makes its regions."""
    import thunder

    return thunder.jit(model, executors=fusioncache.executors())


def train_residual():
    torch.manual_seed(0)
    model = Residual(2)
    compiled, transform = compile_with(model)
    step(compiled, model, torch.randn(10, 10))
    return transform
