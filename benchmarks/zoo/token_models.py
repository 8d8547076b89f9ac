"""Small models that take tokens: encoder and decoder, convolutions, experts."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 512


class GroupedExperts(nn.Module):
    """Mixture of experts: a router picks two for each token, and grouped products compute tokens sorted by expert."""

    def __init__(self, size: int, width: int, experts: int):
        super().__init__()
        self.router = nn.Linear(size, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, size, width) / size**0.5)
        self.down = nn.Parameter(torch.randn(experts, width, size) / width**0.5)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the weights and the numbers of the two experts of each token."""
        return torch.topk(torch.softmax(self.router(x), -1), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the weighted outputs of the experts."""
        weights, chosen = self.route(x)
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = functional.one_hot(chosen.flatten(), self.up.shape[0]).sum(0)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        hidden = functional.silu(functional.grouped_mm(x[order // 2], self.up, offs=ends))
        out = functional.grouped_mm(hidden, self.down, offs=ends)[torch.argsort(order)]
        return (out.unflatten(0, (-1, 2)) * weights.unsqueeze(-1)).sum(1)


class RMSNorm(nn.Module):
    """Divides each token by the root of its mean square, in float32."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes and returns (batch, tokens, size)."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Attention(nn.Module):
    """Attention of the tokens of ``x`` to the tokens of ``y``, in basic operations, with a bias or a causal mask."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(size, size, bias=False) for _ in range(4))
        self.heads = heads

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None = None, causal: bool = False
    ) -> torch.Tensor:
        """Takes (batch, tokens, size) twice, and returns the output in the shape of ``x``."""
        scores = self._split(self.q(x)) @ self._split(self.k(y)).transpose(-1, -2)
        if bias is not None:
            scores = scores + bias
        if causal:
            mask = torch.ones(x.shape[1], y.shape[1], device=x.device, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(mask, -1e4)
        mixed = torch.softmax(scores.float(), -1).to(x.dtype) @ self._split(self.v(y))
        return self.o(mixed.transpose(1, 2).reshape(x.shape))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class GatedMLP(nn.Module):
    """An MLP with a GELU gate."""

    def __init__(self, size: int):
        super().__init__()
        self.gate, self.up = (nn.Linear(size, 2 * size, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * size, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes and returns (batch, tokens, size)."""
        return self.down(functional.gelu(self.gate(x), approximate="tanh") * self.up(x))


class EncoderDecoder(nn.Module):
    """A model like T5: a bias by relative position that all encoder layers share, and unscaled scores."""

    def __init__(self, layers: int = 3, size: int = 256, heads: int = 4):
        super().__init__()

        def block(attentions: int) -> nn.ModuleList:
            parts = [part for _ in range(attentions) for part in (RMSNorm(size), Attention(size, heads))]
            return nn.ModuleList([*parts, RMSNorm(size), GatedMLP(size)])

        self.embedding = nn.Embedding(VOCABULARY, size)
        self.encoder = nn.ModuleList(block(1) for _ in range(layers))
        self.decoder = nn.ModuleList(block(2) for _ in range(layers))
        self.relative = nn.Embedding(64, heads)
        self.encoded, self.decoded = RMSNorm(size), RMSNorm(size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Takes (batch, tokens) and returns logits, (batch, tokens, vocabulary)."""
        x, y = self.embedding(tokens), self.embedding(tokens.flip(1))
        place = torch.arange(tokens.shape[1], device=tokens.device)
        bias = self.relative((place[:, None] - place[None]).clamp(-31, 31) + 32).permute(2, 0, 1).unsqueeze(0)
        for norm, attention, last, mlp in self.encoder:
            h = norm(x)
            x = x + attention(h, h, bias)
            x = x + mlp(last(x))
        x = self.encoded(x)
        for norm, attention, second, cross, last, mlp in self.decoder:
            h = norm(y)
            y = y + attention(h, h, causal=True)
            y = y + cross(second(y), x)
            y = y + mlp(last(y))
        return self.decoded(y) @ self.embedding.weight.T


class Convolutional(nn.Module):
    """A one-dimensional model like ConvNeXt: depthwise convolution, norm of the channels, layer scale, residual."""

    def __init__(self, layers: int = 3, size: int = 128):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, size), nn.Linear(size, VOCABULARY)
        self.depthwise = nn.ModuleList(nn.Conv1d(size, size, 7, padding=3, groups=size) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(size) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(size, 4 * size) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * size, size) for _ in range(layers))
        self.scale = nn.ParameterList(nn.Parameter(torch.full((size,), 0.1 + layer)) for layer in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Takes (batch, tokens) and returns logits, (batch, tokens, vocabulary)."""
        x = self.embedding(tokens)
        layers = zip(self.depthwise, self.norm, self.up, self.down, self.scale, strict=True)
        for depthwise, norm, up, down, scale in layers:
            h = norm(depthwise(x.transpose(1, 2)).transpose(1, 2))
            x = x + scale * down(functional.gelu(up(h)))
        return self.head(x)


class Experts(nn.Module):
    """Layers in which each token goes to two of eight experts, with grouped products for all experts at once."""

    def __init__(self, layers: int = 3, size: int = 128):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, size), nn.Linear(size, VOCABULARY)
        self.norm = nn.ModuleList(RMSNorm(size) for _ in range(layers))
        self.experts = nn.ModuleList(GroupedExperts(size, 2 * size, 8) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Takes (batch, tokens) and returns logits, (batch, tokens, vocabulary)."""
        x = self.embedding(tokens)
        for norm, experts in zip(self.norm, self.experts, strict=True):
            x = x + experts(norm(x).flatten(0, 1)).unflatten(0, tokens.shape)
        return self.head(x)


MODELS = {"encoder-decoder": EncoderDecoder, "convolutional": Convolutional, "experts": Experts}
