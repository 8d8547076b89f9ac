"""The catalogue of models, with the depth from which on their templates are complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

_BETWEEN = "the gradient passes from a layer to the one in front by another region than from the first to the embedding"
_ALIKE = "the gradient leaves every layer by the same region, the first included"
_ALTERNATES = f"layers with sliding-window and with global attention alternate, and {_BETWEEN}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue.

    Attributes:
        name: of the model, in the catalogue.
        package: that contains the model, and a configuration with its real number of layers.
        source: the name of its configuration in litgpt, or the prefix of its classes in transformers.
        changes: of that configuration, other than widths.
        steady: the number of layers from which on another layer adds no template, as measured with fusioncache's
            executor. nvFuser's regions are larger, and Gemma-2's may need an even number of layers to be compared.
        why: the reason for that number.
    """

    name: str
    package: Literal["litgpt", "transformers"]
    source: str
    changes: dict[str, object] = field(default_factory=dict)
    steady: int = 2
    why: str = _BETWEEN


ENTRIES = (
    Entry("llama-2", "litgpt", "Llama-2-7b-hf"),
    Entry("llama-3", "litgpt", "Llama-3-8B"),
    Entry("gemma", "litgpt", "Gemma-2b"),
    Entry("gemma-2", "litgpt", "Gemma-2-2b", why=_ALTERNATES),
    Entry("mistral", "litgpt", "Mistral-7B-v0.1"),
    Entry("mixtral", "litgpt", "Mixtral-8x7B-v0.1"),
    Entry("pythia", "litgpt", "pythia-160m"),
    Entry("falcon", "litgpt", "falcon-7b"),
    Entry("phi", "litgpt", "phi-2"),
    Entry("olmo-2", "litgpt", "OLMo-2-1124-7B", steady=1, why=_ALIKE),
    Entry("stablelm", "litgpt", "stablelm-3b-4e1t"),
    # Pythia 160M has the depth and the widths of the smallest GPT-2.
    Entry("gpt2-like", "litgpt", "pythia-160m", {"parallel_residual": False, "gelu_approximate": "tanh"}),
    Entry("hf-gpt2", "transformers", "GPT2", steady=1, why=_ALIKE),
    Entry("hf-llama", "transformers", "Llama"),
    Entry("hf-bert", "transformers", "Bert"),
    Entry("hf-vit", "transformers", "ViT"),
)


def names() -> tuple[str, ...]:
    """Returns the names of all models."""
    return tuple(entry.name for entry in ENTRIES)


def find_entry(name: str) -> Entry:
    """Returns the model of this name.

    Raises:
        KeyError: if it does not exist; the message lists all names.
    """
    for found in ENTRIES:
        if found.name == name:
            return found
    raise KeyError(f"unknown model {name!r}: use one of {', '.join(names())}")
