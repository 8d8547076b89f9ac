"""Models of litgpt, from its configurations."""

from __future__ import annotations

from typing import Any

import torch
from litgpt import GPT, Config
from litgpt.model import LLaMAMoE

from benchmarks.zoo.catalogue import Entry
from benchmarks.zoo.make import Built, Sizes, Width


class DenseMoE(LLaMAMoE):
    """litgpt's mixture of experts without data-dependent indexing: each expert gets all tokens, most with gate 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum of all experts' outputs, weighted with their gates."""
        tokens = x.view(-1, x.size(-1))
        gates, picked = torch.topk(self.gate(tokens), self.config.n_expert_per_token)
        gates = gates.softmax(dim=1, dtype=torch.float).to(dtype=x.dtype)
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            gate = torch.where(picked == number, gates, torch.zeros_like(gates)).sum(dim=1, keepdim=True)
            y = y + gate * expert(tokens)
        return y.view(x.size())


def build(entry: Entry, layers: int | None, sizes: Sizes, width: Width) -> Built:
    """Returns the model and its tokens, on the CPU."""
    real = Config.from_name(entry.source)
    changes = {**entry.changes, "block_size": 2 * sizes.sequence, "n_layer": layers or real.n_layer}
    if width == "narrow":
        changes |= _narrow(real, sizes)
    config = Config.from_name(entry.source, **changes)
    model = GPT(config)
    for block in model.transformer.h:
        if isinstance(block.mlp, LLaMAMoE):
            block.mlp.__class__ = DenseMoE
    # Thunder's executor for attention refuses a mask without a batch dimension, such as that of a sliding window.
    batch = 1 if config.sliding_window_size else sizes.batch
    tokens = torch.randint(0, config.padded_vocab_size, (batch, sizes.sequence))
    return Built(model, (tokens,), config.padded_vocab_size, config.n_layer, real.n_layer)


def _narrow(real: Config, sizes: Sizes) -> dict[str, Any]:
    """Returns small widths that preserve the model's kind of attention and its ratios."""
    head = sizes.embedding // sizes.heads
    widths: dict[str, Any] = {
        "n_embd": sizes.embedding,
        "n_head": sizes.heads,
        "n_query_groups": _query_groups(real, sizes),
        # Half of it if the heads together are not as wide as the residual stream.
        "head_size": head if real.head_size * real.n_head == real.n_embd else head // 2,
        "padded_vocab_size": sizes.vocabulary,
        "intermediate_size": _scale(real.intermediate_size, real, sizes),
    }
    if real.n_expert:
        widths["n_expert"] = min(sizes.experts, real.n_expert)
    if real.moe_intermediate_size:
        widths["moe_intermediate_size"] = _scale(real.moe_intermediate_size, real, sizes)
    if real.sliding_window_size:
        widths["sliding_window_size"] = sizes.sequence // 2  # so that it masks something
    return widths


def _query_groups(real: Config, sizes: Sizes) -> int:
    if real.n_query_groups in (1, real.n_head):
        return 1 if real.n_query_groups == 1 else sizes.heads
    return sizes.heads // 2


def _scale(width: int, real: Config, sizes: Sizes) -> int:
    """Returns a width in the same ratio to the residual stream, rounded to a multiple of 8, as matrix units need."""
    return 8 * max(1, round(width / real.n_embd * sizes.embedding / 8))
