"""Models of Hugging Face that return a loss, with random weights from configurations. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.zoo.make import Workload

_LAYERS, _WIDTH, _HEADS, _WORDS, _LENGTH = 2, 64, 4, 256, 32
_TOKENS = {"use_cache": False, "pad_token_id": 0, "decoder_start_token_id": 1}
_SIZES = {"hidden_size": _WIDTH, "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS}

Inputs = dict[str, torch.Tensor]


def _draw_tokens(length: int = _LENGTH) -> torch.Tensor:
    return torch.randint(3, _WORDS, (2, length))


def _gpt2() -> tuple[nn.Module, Inputs]:
    sizes = {"n_layer": _LAYERS, "n_embd": _WIDTH, "n_head": _HEADS, "vocab_size": _WORDS, "n_positions": 2 * _LENGTH}
    tokens = _draw_tokens()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))
    return model, {"input_ids": tokens, "labels": tokens}


def _bert() -> tuple[nn.Module, Inputs]:
    sizes = {"intermediate_size": 2 * _WIDTH, "vocab_size": _WORDS, "max_position_embeddings": 2 * _LENGTH}
    tokens = _draw_tokens()
    model = transformers.BertForMaskedLM(transformers.BertConfig(**_SIZES, **sizes))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def _vit() -> tuple[nn.Module, Inputs]:
    sizes = {"intermediate_size": 2 * _WIDTH, "image_size": 32, "patch_size": 8, "num_labels": 10}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**_SIZES, **sizes))
    return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 2])}


def _t5() -> tuple[nn.Module, Inputs]:
    sizes = {"num_layers": _LAYERS, "d_model": _WIDTH, "num_heads": _HEADS, "d_kv": _WIDTH // _HEADS}
    config = transformers.T5Config(
        **sizes, d_ff=2 * _WIDTH, vocab_size=_WORDS, **{**_TOKENS, "decoder_start_token_id": 0}
    )
    tokens = _draw_tokens()
    return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": tokens}


def _whisper() -> tuple[nn.Module, Inputs]:
    sides = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (("layers", _LAYERS), ("attention_heads", _HEADS), ("ffn_dim", 2 * _WIDTH))
    }
    sizes = {"d_model": _WIDTH, "vocab_size": _WORDS, "num_mel_bins": 16, "bos_token_id": 1, "eos_token_id": 2}
    lengths = {"max_source_positions": _LENGTH, "max_target_positions": _LENGTH}
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**sides, **sizes, **lengths, **_TOKENS)
    )
    return model, {"input_features": torch.randn(2, 16, 2 * _LENGTH), "labels": _draw_tokens(_LENGTH // 2)}


class LoRA(nn.Module):
    """A frozen linear layer plus a trained product of two narrow matrices.

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
        """Returns the output of the layer plus half of the product's."""
        return self.layer(x) + 0.5 * self.up(self.down(x))


def _lora() -> tuple[nn.Module, Inputs]:
    model, inputs = _gpt2()
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = LoRA(block.attn.c_attn)
    return model, inputs


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Inputs]]] = MappingProxyType(
    {"GPT-2": _gpt2, "BERT": _bert, "ViT": _vit, "T5": _t5, "Whisper": _whisper, "LoRA": _lora}
)
"""Functions that make each model. LoRA is implemented here, on GPT-2, so that the benchmark does not need peft."""


class Loss(nn.Module):
    """A model that takes its inputs as positional arguments, and returns its loss."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        return self.model(**dict(zip(self.names, inputs, strict=True))).loss


def make(name: str) -> Workload:
    """Returns a model and its inputs, the same in each process.

    Models are in training mode, except Whisper: in training mode its layers are dropped at random, and Thunder 0.2.6
    fails there. Whisper has gradients nevertheless.
    """
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    whole = Loss(model.train(name != "Whisper"), tuple(inputs))
    return Workload(name, whole, tuple(inputs.values()), lambda loss: loss, _LAYERS, _LAYERS, "thunderfx")
