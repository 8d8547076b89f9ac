"""Small stacks of residual blocks, of every kind whose stream recompute must understand or leave alone."""

import torch
from torch import nn

SIZE = 16


class Stack(nn.Module):
    """``depth`` blocks of a kind around one residual stream, or ``two`` of which the second reads the first."""

    def __init__(self, kind: str, depth: int = 4):
        super().__init__()
        self.kind = kind
        branches = 2 * depth if kind in ("parallel", "two") else depth
        self.linears = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(branches))
        self.norms = nn.ModuleList(nn.RMSNorm(SIZE, eps=1e-6) for _ in range(branches))
        self.gates = nn.ParameterList(torch.rand(SIZE) for _ in range(branches))
        self.depth = depth
        if kind == "mixed":
            self.linears.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        if self.kind == "two":
            return self._two(x)
        # Backward of "both" does not read the stream's beginning, which is an argument in other kinds.
        sums = [self.linears[-1](x)] if self.kind == "both" else [x]
        for block in range(self.depth):
            sums.append(self._block(sums[-1], block))
        return tuple(sums[1:]) if self.kind == "outputs" else sums[-1]

    def _block(self, x: torch.Tensor, block: int) -> torch.Tensor:
        linear, norm, gate = self.linears[block], self.norms[block], self.gates[block]
        match self.kind:
            case "pre":
                return x + linear(norm(x))
            case "post" | "outputs":
                return x + norm(linear(x))
            case "both":
                return x + norm(linear(torch.tanh(self.norms[0](x))))
            case "parallel":
                other = self.depth + block
                return x + norm(linear(x)) + self.norms[other](self.linears[other](x))
            case "scaled":
                return x + 0.5 * norm(linear(x))
            case "gated":
                return x + gate * torch.tanh(linear(x))
            case "dropout":
                return x + nn.functional.dropout(norm(linear(x)), 0.25)
            case "mixed":
                return x + norm(linear(x.bfloat16()).float())
        return torch.tanh(linear(x))

    def _two(self, x: torch.Tensor) -> torch.Tensor:
        encoded, decoded = x, torch.sin(x)
        for linear, norm in zip(self.linears[: self.depth], self.norms, strict=False):
            encoded = encoded + norm(linear(encoded))
        for linear, norm in zip(self.linears[self.depth :], self.norms[self.depth :], strict=True):
            decoded = decoded + norm(linear(decoded * encoded))
        return decoded


def train(model, compiled, x):
    model.zero_grad()
    x = x.detach().requires_grad_()
    torch.manual_seed(7)
    outputs = compiled(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((place + 1) * output.float().square().sum() for place, output in enumerate(outputs)).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [*(output.detach() for output in outputs), x.grad, *gradients]
