"""Models of Hugging Face, with random weights from their default configurations. Nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from benchmarks.common.models import NARROW
from benchmarks.zoo.catalogue import Entry
from benchmarks.zoo.make import Built, Sizes, Way, Width

_HEADS = {"GPT2": "LMHeadModel", "Llama": "ForCausalLM", "Bert": "ForMaskedLM", "ViT": "ForImageClassification"}
_CLASSES, _PATCH, _PATCHES = 10, 8, 4

# Dropout is off, because other tests cover random numbers. A key-value cache is only needed for generation.
_FIXED: dict[str, dict[str, Any]] = {
    "GPT2": {"use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "Llama": {"use_cache": False},
    "Bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "ViT": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": _CLASSES},
}


class Logits(torch.nn.Module):
    """A model that takes its inputs as positional arguments, and returns only its logits."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


class Unpadded(torch.nn.Module):
    """A model that takes tokens, and gets the mask of a batch without padding, as from a data loader."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = Logits(model, ("input_ids", "attention_mask"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        logits: torch.Tensor = self.model(tokens, torch.ones_like(tokens))
        return logits


def build(entry: Entry, layers: int | None, sizes: Sizes, width: Width) -> Built:
    """Returns the model and its inputs, on the CPU."""
    source = entry.source
    make_config = getattr(transformers, f"{source}Config")
    real = make_config()
    count = layers or real.num_hidden_layers
    narrow = _narrow(source, real, sizes) if width == "narrow" else {}
    config = make_config(num_hidden_layers=count, **_FIXED[source], **narrow)
    inputs = _inputs(source, config, sizes)
    model = Logits(getattr(transformers, source + _HEADS[source])(config), tuple(inputs))
    classes = _CLASSES if source == "ViT" else config.vocab_size
    return Built(model, tuple(inputs.values()), classes, count, real.num_hidden_layers, _way())


def make_gpt2(layers: int, longest: int, device: str) -> torch.nn.Module:
    """Returns a narrow GPT-2 that takes (batch, tokens), with at most ``longest`` tokens, and returns logits."""
    embedding, heads, _, vocabulary = NARROW[device]
    widths = {"n_embd": embedding, "n_head": heads, "vocab_size": vocabulary, "n_positions": longest}
    config = transformers.GPT2Config(n_layer=layers, **widths, **_FIXED["GPT2"])
    return Unpadded(transformers.GPT2LMHeadModel(config))


def _narrow(source: str, real: Any, sizes: Sizes) -> dict[str, Any]:
    widths = {"hidden_size": sizes.embedding, "num_attention_heads": sizes.heads}
    if source != "GPT2":  # where it is 4 times the embedding by default
        ratio = real.intermediate_size / real.hidden_size
        widths["intermediate_size"] = 8 * round(ratio * sizes.embedding / 8)
    if source == "ViT":
        return widths | {"image_size": _PATCH * _PATCHES, "patch_size": _PATCH}
    return widths | {"vocab_size": sizes.vocabulary, "max_position_embeddings": 2 * sizes.sequence}


def _inputs(source: str, config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    if source == "ViT":
        return {"pixel_values": torch.randn(sizes.batch, 3, config.image_size, config.image_size)}
    shape = sizes.batch, sizes.sequence
    tokens = torch.randint(0, config.vocab_size, shape)
    if source == "Bert":
        padded = torch.arange(sizes.sequence) < sizes.sequence - 3 * torch.arange(sizes.batch)[:, None]
        return {"input_ids": tokens, "attention_mask": padded.long()}
    causal = torch.full((sizes.sequence, sizes.sequence), torch.finfo(torch.float32).min).triu(1)
    positions = torch.arange(sizes.sequence).expand(shape).contiguous()
    mask = causal.expand(sizes.batch, 1, -1, -1).contiguous()
    return {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}


def _way() -> Way:
    """Returns the way into Thunder. ``thunder.jit`` refuses models that set globals while they run, as in version 5."""
    return "jit" if int(transformers.__version__.split(".")[0]) < 5 else "thunderfx"
