"""Small models of Hugging Face, with random weights from configurations. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import nn

_LAYERS, _WIDTH, _HEADS, _WORDS, _LENGTH = 2, 64, 4, 256, 32

type Built = tuple[nn.Module, dict[str, torch.Tensor]]
"""A model, and what it is called with: it returns a loss."""


def _tokens(length: int = _LENGTH) -> torch.Tensor:
    return torch.randint(3, _WORDS, (2, length))


def _gpt2() -> Built:
    config = transformers.GPT2Config(
        n_layer=_LAYERS, n_embd=_WIDTH, n_head=_HEADS, vocab_size=_WORDS, n_positions=2 * _LENGTH, use_cache=False
    )
    tokens = _tokens()
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def _bert() -> Built:
    config = transformers.BertConfig(
        num_hidden_layers=_LAYERS,
        hidden_size=_WIDTH,
        num_attention_heads=_HEADS,
        intermediate_size=2 * _WIDTH,
        vocab_size=_WORDS,
        max_position_embeddings=2 * _LENGTH,
    )
    tokens = _tokens()
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    return transformers.BertForMaskedLM(config), inputs


def _vit() -> Built:
    config = transformers.ViTConfig(
        num_hidden_layers=_LAYERS,
        hidden_size=_WIDTH,
        num_attention_heads=_HEADS,
        intermediate_size=2 * _WIDTH,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 2])}
    return transformers.ViTForImageClassification(config), inputs


def _t5() -> Built:
    config = transformers.T5Config(
        num_layers=_LAYERS,
        d_model=_WIDTH,
        num_heads=_HEADS,
        d_kv=_WIDTH // _HEADS,
        d_ff=2 * _WIDTH,
        vocab_size=_WORDS,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    tokens = _tokens()
    return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": tokens}


def _whisper() -> Built:
    config = transformers.WhisperConfig(
        encoder_layers=_LAYERS,
        decoder_layers=_LAYERS,
        d_model=_WIDTH,
        encoder_attention_heads=_HEADS,
        decoder_attention_heads=_HEADS,
        encoder_ffn_dim=2 * _WIDTH,
        decoder_ffn_dim=2 * _WIDTH,
        vocab_size=_WORDS,
        max_source_positions=_LENGTH,
        max_target_positions=_LENGTH,
        num_mel_bins=16,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    inputs = {"input_features": torch.randn(2, 16, 2 * _LENGTH), "labels": _tokens(_LENGTH // 2)}
    return transformers.WhisperForConditionalGeneration(config), inputs


class LoRA(nn.Module):
    """A linear layer that is frozen, with a product of two narrow matrices beside it that is trained.

    Args:
        layer: GPT-2's ``Conv1D``.
        rank: of the product.
    """

    def __init__(self, layer: Any, rank: int = 4):
        super().__init__()
        inputs, outputs = layer.weight.shape
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the layer returns, and the product times a half."""
        return self.layer(x) + 0.5 * self.up(self.down(x))


def _lora() -> Built:
    model, inputs = _gpt2()
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = LoRA(block.attn.c_attn)
    return model, inputs


MODELS: Mapping[str, Callable[[], Built]] = MappingProxyType(
    {"GPT-2": _gpt2, "BERT": _bert, "ViT": _vit, "T5": _t5, "Whisper": _whisper, "LoRA": _lora}
)
"""What makes each model. LoRA is written by hand, on GPT-2: the benchmark does not need peft."""


def build(name: str) -> Built:
    """Returns a model and its inputs, the same in each process.

    Models are in training mode, but for Whisper: in training its layers draw whether they are left out, and Thunder
    0.2.6 fails there. It has gradients all the same.
    """
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.train(name != "Whisper"), inputs
