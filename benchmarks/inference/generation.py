"""Greedy generation with litgpt's key-value cache: the core loop of its ``generate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

Forward = Callable[..., torch.Tensor]
"""Takes tokens and their positions, and returns logits."""


class Places:
    """Where a token and its position lie, so that what is captured in a CUDA graph finds them there.

    Args:
        device: of both.

    Attributes:
        token: of shape (1, 1).
        position: of shape (1,).
    """

    def __init__(self, device: str):
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)


class Generation:
    """The tokens behind one prompt, each as soon as it is asked for.

    Each token and its position lie where those before did, as litgpt's position does. How far the cache is filled is
    not told as a number, ``input_pos_maxp1``: litgpt leaves that out for Thunder, which would have another program for
    each token.

    Args:
        forward: the model, or what a way made of it.
        prompt: tokens of shape (length,).
        places: where tokens behind the prompt lie.
        observe: is given the logits of each token.
    """

    def __init__(
        self,
        forward: Forward,
        prompt: torch.Tensor,
        places: Places,
        observe: Callable[[torch.Tensor], object] = lambda logits: None,
    ):
        self._forward = forward
        self._observe = observe
        self._prompt: torch.Tensor | None = prompt
        self._places = places

    def take(self) -> torch.Tensor:
        """Returns the next token, of shape (1,), on the device of the prompt. Waits for nothing there."""
        torch.compiler.cudagraph_mark_step_begin()
        places, prompt = self._places, self._prompt
        if prompt is None:
            logits = self._forward(places.token, places.position)
            places.position.add_(1)
        else:
            logits = self._forward(prompt.view(1, -1), torch.arange(prompt.numel(), device=prompt.device))
            places.position.fill_(prompt.numel())
            self._prompt = None
        self._observe(logits)
        token = torch.argmax(logits[0, -1], dim=-1, keepdim=True)
        places.token.copy_(token.view(1, 1))
        return token

    def take_many(self, count: int) -> Iterator[torch.Tensor]:
        """Yields that many tokens."""
        for _ in range(count):
            yield self.take()
