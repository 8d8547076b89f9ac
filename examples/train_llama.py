"""Trains a small Llama for a few steps, and says what became of its fusion regions.

    python examples/train_llama.py --layers 4 --steps 3

Another layer brings more regions and no more templates: try --layers 8. The model is litgpt's, made narrow:
pip install litgpt==0.5.13 jsonargparse
"""

from __future__ import annotations

import argparse
import time

import litgpt
import thunder
import torch

import fusioncache

WIDTHS = {"n_embd": 64, "n_head": 4, "intermediate_size": 176, "padded_vocab_size": 256, "block_size": 64}


def main(arguments: list[str] | None = None) -> fusioncache.Stats:
    """Trains on random tokens, and returns the counts of the transform."""
    parser = argparse.ArgumentParser(description="Train a small Llama through Thunder and fusioncache.")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--backend", default="auto", help="auto, nvfuser, inductor, or eager, which compiles nothing")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = litgpt.GPT(litgpt.Config.from_name("Llama-2-7b-hf", n_layer=options.layers, **WIDTHS)).to(device)
    transform = fusioncache.FusionCache(backend=options.backend)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, WIDTHS["padded_vocab_size"], (2, 33), device=device)
    for step in range(options.steps):
        start = time.perf_counter()
        logits = compiled(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f} in {time.perf_counter() - start:.2f} s")

    stats = transform.stats()
    print(f"{stats.regions} regions, {stats.templates} templates: {stats.compiles} compiled, {stats.loads} loaded")
    return stats


if __name__ == "__main__":
    main()
