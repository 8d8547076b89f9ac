"""litgpt's Llama with a key-value cache, and tokens that it generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from litgpt import GPT, Config

LENGTH = 64
"""Capacity of the key-value cache in tokens."""


def make_model(layers: int = 1) -> GPT:
    """Returns a small model with an empty cache for one row of tokens, the same one each time."""
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_head": 2, "head_size": 16, "n_query_groups": 2, "intermediate_size": 48}
    model = GPT(Config.from_name("Llama-2-7b-hf", n_layer=layers, block_size=LENGTH, padded_vocab_size=64, **sizes))
    model.set_kv_cache(batch_size=1)
    return model.eval()


def make_prompt(length: int) -> torch.Tensor:
    return torch.randint(0, 64, (1, length), generator=torch.Generator().manual_seed(length))


def generate(call: Callable[..., Any], prompt: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Returns the logits of ``count`` steps of greedy decoding, of which the first one processes the prompt."""
    tokens, positions, found = prompt, torch.arange(prompt.shape[1], device=prompt.device), []
    for _ in range(count):
        logits = call(tokens, positions)
        found.append(logits.clone())
        tokens, positions = logits[:, -1].argmax(-1, keepdim=True), positions[-1:] + 1
    return found


class Places:
    """Token and position in tensors at fixed addresses, so that a program that reads them can be captured."""

    def __init__(self) -> None:
        self.token = torch.zeros(1, 1, dtype=torch.int64)
        self.position = torch.zeros(1, dtype=torch.int64)

    def generate(self, call: Callable[..., Any], prompt: torch.Tensor, count: int) -> list[torch.Tensor]:
        found = generate(call, prompt, 1)
        self.position.fill_(prompt.shape[1])
        for _ in range(count - 1):
            self.token.copy_(found[-1][:, -1].argmax(-1, keepdim=True))
            found.append(call(self.token, self.position))
            self.position.add_(1)
        return found


def find_caches(model: GPT) -> Iterator[torch.Tensor]:
    for block in model.transformer.h:
        yield from block.attn.kv_cache.buffers()
